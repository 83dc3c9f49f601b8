"""The checkpoints that are kept: the last ones, one every so many steps, and the best."""

from math import inf, nan

import pytest

from coa.errors import UserError
from coa.storage.keeping import CheckpointsConfig, check_keeping, superfluous


def kept(config: CheckpointsConfig, steps: range, scores: dict[int, float] | None = None) -> list[int]:
    """The versions that are left after checkpoints at all of these steps."""
    versions: dict[str, int] = {}
    for step in steps:
        versions[f"checkpoint_{step:03}"] = step
        for name in superfluous(versions, config, {at: s for at, s in (scores or {}).items() if at <= step}):
            del versions[name]
    return list(versions.values())


TENS = range(10, 101, 10)


def test_the_last_ones_are_kept() -> None:
    assert kept(CheckpointsConfig(), TENS) == [90, 100]
    assert kept(CheckpointsConfig(keep=3), TENS) == [80, 90, 100]
    assert kept(CheckpointsConfig(keep=1), range(10, 11)) == [10]


def test_one_every_so_many_steps_is_kept_for_good() -> None:
    assert kept(CheckpointsConfig(keep=1, keep_every=30), TENS) == [30, 60, 90, 100]
    assert kept(CheckpointsConfig(keep=1, keep_every=25), TENS) == [30, 50, 80, 100], "the first one from there on"
    assert kept(CheckpointsConfig(keep=1, keep_every=5), TENS) == list(TENS)


def test_the_best_one_by_evaluation_is_kept() -> None:
    scores = {10: 0.1, 20: 0.5, 30: 0.5, 60: 0.4, 65: 0.9}
    assert kept(CheckpointsConfig(keep=1, keep_best=True), TENS, scores) == [30, 100], "65 has no checkpoint"
    assert kept(CheckpointsConfig(keep=1, keep_best=True), TENS, {**scores, 80: 0.6}) == [80, 100]
    assert kept(CheckpointsConfig(keep=1), TENS, scores) == [100]
    assert kept(CheckpointsConfig(keep=1, keep_best=True), TENS) == [100]


@pytest.mark.parametrize("wrong", [nan, inf])
def test_a_score_that_is_not_finite_is_never_the_best(wrong: float) -> None:
    config = CheckpointsConfig(keep=1, keep_best=True)
    assert kept(config, TENS, {10: wrong, 20: 0.5, 30: wrong, 40: 0.25}) == [20, 100]
    assert kept(config, TENS, {20: wrong}) == [100]


@pytest.mark.parametrize("evaluate_every", [0, 15])
def test_none_is_the_best_if_none_is_evaluated(evaluate_every: int) -> None:
    config = CheckpointsConfig(keep_best=True)
    with pytest.raises(UserError, match=f"as a multiple of rl.checkpoint_every=10: it is {evaluate_every}$"):
        check_keeping(config, checkpoint_every=10, evaluate_every=evaluate_every)
    check_keeping(config, checkpoint_every=10, evaluate_every=20)
    check_keeping(CheckpointsConfig(), checkpoint_every=10, evaluate_every=evaluate_every)
