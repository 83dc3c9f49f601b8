"""Silent faults, injected into healthy samples: each is named, and health is not."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest

from coa.learning.algorithms.grpo import Grpo
from coa.learning.faults import Credit, gaps, of_credit, of_step, of_sync
from coa.learning.samples import to_samples
from coa.types import Sample
from tests.coa.learning.test_advantages import scored


@dataclass(frozen=True)
class Step:
    logprob_mean_diff: float | None = 1e-6
    logprob_gap: float = 1e-3
    logprob_shifted_gap: float = 0.8
    unsampled: int = 0
    untrained: int = 0
    updates: int = 1
    skipped: int = 0
    not_finite: str | None = None


@pytest.mark.parametrize("shift", [1, -1])
def test_log_probs_that_are_one_token_off_are_told_from_old_ones(shift: int) -> None:
    """Three samples; what is old differs by as much everywhere."""
    rng = np.random.default_rng(0)
    lengths = (40, 1, 25)
    segments = np.repeat(np.arange(3), lengths)
    learner = [-rng.exponential(size=n).astype(np.float32) for n in lengths]
    rollout = np.concatenate([np.roll(one, shift) for one in learner]) + np.float32(0.01)
    flat = np.concatenate(learner)
    here, late, early, pairs = gaps(rollout, flat, segments)
    assert pairs == 39 + 24
    assert min(late, early) / pairs < 0.2 < here / pairs
    assert (late < early) == (shift == 1)
    [said] = of_step(Step(logprob_gap=here / pairs, logprob_shifted_gap=min(late, early) / pairs), 1e-4)
    assert said.startswith("rollout log-probs are one token off")
    here, late, early, pairs = gaps(flat - np.float32(0.3), flat, segments)
    assert here / pairs == pytest.approx(0.3, abs=1e-5)
    assert of_step(Step(logprob_gap=here / pairs, logprob_shifted_gap=min(late, early) / pairs), 1e-4) == []


def test_a_stale_version_under_the_right_name_is_named_where_log_probs_are_to_be_equal() -> None:
    [said] = of_step(Step(logprob_mean_diff=0.03), 1e-4)
    assert said.startswith("engine weights do not match their reported version")
    assert of_step(Step(logprob_mean_diff=float("nan")), 1e-4)
    assert of_step(Step(logprob_mean_diff=0.03), None) == []
    assert of_step(Step(logprob_mean_diff=None), 1e-4) == [], "no token of that version was trained"
    assert of_step(Step(), 1e-4) == []


@dataclass(frozen=True)
class Loaded:
    version: int = 7
    logprob_diff: float = 1e-5
    logprob_mean_diff: float = 1e-7
    alarm: bool = False
    unmoved: bool = False


def test_engines_that_name_a_version_and_compute_with_another_are_counted() -> None:
    stale = Loaded(logprob_diff=0.03125, logprob_mean_diff=0.015625, alarm=True)
    assert of_sync([Loaded(), Loaded()]) == of_sync([]) == []
    assert of_sync([Loaded(), stale, Loaded(logprob_diff=float("nan"), alarm=True)]) == [
        "2 of 3 engines compute with other weights than those of version 7, which they report: log-probs are up to nan "
        "nats from the learner's, 0.016 on average"
    ]


def test_engines_that_compute_as_before_a_load_are_named_however_close_the_versions_are() -> None:
    same = Loaded(alarm=True, unmoved=True)
    assert of_sync([same, Loaded()]) == [
        "1 of 2 engines compute with the weights from before version 7, which they report: their log-probs have not "
        "changed, the learner's have"
    ]


def test_a_mask_that_is_one_token_off_is_named() -> None:
    assert of_step(Step(unsampled=3), 1e-4) == [
        "3 trained tokens were not sampled by the policy: the loss mask is misaligned"
    ]
    assert of_step(Step(untrained=2), 1e-4) == [
        "2 tokens that the policy sampled are not trained: the loss mask is misaligned"
    ]


REWARDS = (1.0, 0.0, 0.0, 0.5)


def suspected(samples: Sequence[Sample], rewards: Sequence[float]) -> list[str]:
    return of_credit(7, samples, rewards, Credit.relative)


def test_advantages_of_another_group_do_not_add_up() -> None:
    samples = to_samples([scored(reward) for reward in REWARDS], Grpo(), 7)
    others = to_samples([scored(1.0), scored(0.0), scored(1.0), scored(1.0)], Grpo(), 8)
    assert suspected(samples, REWARDS) == []
    swapped = [replace(samples[0], reinforce=others[1].reinforce), *samples[1:]]
    [said] = suspected(swapped, REWARDS)
    assert said.startswith("the advantages of group 7 add up to -")


@pytest.mark.parametrize("others", [(0.0, 1.0, 0.0, 0.5), (1.0, 0.0, 0.5, 0.5)], ids=["another order", "equals apart"])
def test_all_advantages_of_another_group_do_not_follow_the_rewards(others: tuple[float, ...]) -> None:
    """They add up to 0 too."""
    samples = to_samples([scored(reward) for reward in others], Grpo(), 7)
    assert suspected(samples, others) == []
    assert suspected(samples, REWARDS) == [
        "the advantages of group 7 do not follow its rewards: they are of another group"
    ]


def test_a_skipped_update_is_named_with_its_cause_and_with_nothing_else() -> None:
    nothing = Step(updates=0, skipped=2, not_finite="3 advantages are not finite", logprob_mean_diff=float("nan"))
    assert of_step(nothing, 1e-4) == ["nothing was learnt from the batch: 3 advantages are not finite"]
    part = Step(updates=3, skipped=1, not_finite="the total count is not finite")
    assert of_step(part, None) == ["1 of 4 updates were skipped: the total count is not finite"]
