"""The orders of a group's episodes."""

import asyncio
from typing import Any

import pytest

from actors.messages import EpisodeOrder
from coa.learning.window import Ticket
from jobs.recipe.schema import RlConfig
from jobs.stages.reinforcement.groups import play_group
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
    with pytest.raises(ValueError, match="expected both or neither"):
        RlConfig(**settings)
