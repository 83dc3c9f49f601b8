"""The orders of a group's episodes, and the faults of its samples' advantages."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from actors.messages import EpisodeOrder
from coa.learning.algorithms import ALGORITHMS, make
from coa.learning.algorithms.base import Algorithm
from coa.learning.algorithms.grpo import Grpo
from coa.learning.algorithms.imitation import Imitation
from coa.learning.algorithms.reinforce_pp import ReinforcePp
from coa.learning.faults import Credit
from coa.learning.samples import to_samples
from coa.learning.window import Ticket
from coa.types import Floats, Scored, Status
from jobs.recipe.schema import RlConfig
from jobs.stages.reinforcement.groups import Group, credit_of, play_group
from tests.coa.learning.test_advantages import scored
from tests.support.tiny import AGENT, sum_task


class Ordered:
    """A pool that plays nothing."""

    def __init__(self) -> None:
        self.orders: list[EpisodeOrder] = []

    async def play(self, order: EpisodeOrder) -> Any:
        self.orders.append(order)


def test_episodes_are_longer_from_a_version_on() -> None:
    config = RlConfig(group=2, short_steps=5, short_tokens=100)
    for version, most in ((0, 100), (4, 100), (5, AGENT.limits.max_tokens)):
        pool = Ordered()
        asyncio.run(play_group(pool, sum_task(0), Ticket(group=3, version=version), 0, config, AGENT))
        assert [order.agent.limits.max_tokens for order in pool.orders] == [most] * 2


@pytest.mark.parametrize("settings", [{"short_steps": 3}, {"short_tokens": 100}])
def test_short_episodes_need_a_length_and_a_number_of_versions(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="set only together"):
        RlConfig(**settings)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
@pytest.mark.parametrize("mask_truncated", [False, True])
def test_advantages_of_a_groups_own_are_no_fault(name: str, mask_truncated: bool) -> None:
    """Nor are those of a group that nothing is to be learnt from: all of them are 0."""
    algorithm, rng = make(name), np.random.default_rng(0)
    for _ in range(100):
        status = rng.choice(np.asarray([Status.ANSWERED, Status.TRUNCATED], object), 8)
        drawn = zip(rng.choice([0.0, 0.3, 0.9, 1.0], 8).tolist(), status, strict=True)
        assert faults_of([ended(reward, end) for reward, end in drawn], algorithm, mask_truncated) == []
    alike = [scored(reward, grade=1.0) for reward in (1.0, 0.9, 0.8)]
    assert faults_of(alike, algorithm, mask_truncated) == []


def test_advantages_around_the_groups_mean_are_relative() -> None:
    """Those of an algorithm that nobody here knows may be anything."""
    assert credit_of(ReinforcePp(baseline=True)) is Credit.relative
    assert credit_of(Imitation()) is None

    class Halved(Grpo):
        def compare(self, rewards: Sequence[float]) -> Floats:
            return super().compare(rewards).clip(min=0)

    assert credit_of(Grpo()) is Credit.relative
    assert credit_of(Halved()) is None


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
def test_rewards_of_another_group_are_named_where_they_are_the_advantages(name: str) -> None:
    algorithm = make(name)
    samples = to_samples([scored(1.0), scored(1.0)], algorithm, 7)
    group = Group(number=7, index=0, task=sum_task(0), episodes=(scored(0.0), scored(0.0)))
    assert group.faults(samples, algorithm, mask_truncated=False) == [
        "the advantages of group 7 are not its rewards: they are of another group"
    ]


def faults_of(episodes: Sequence[Scored], algorithm: Algorithm, mask_truncated: bool) -> list[str]:
    group = Group(number=7, index=0, task=sum_task(0), episodes=tuple(episodes))
    samples = to_samples(episodes, algorithm, 7, mask_truncated=mask_truncated)
    return group.faults(samples, algorithm, mask_truncated=mask_truncated)


def ended(reward: float, status: Status) -> Scored:
    one = scored(reward)
    return replace(one, trajectory=replace(one.trajectory, status=status))
