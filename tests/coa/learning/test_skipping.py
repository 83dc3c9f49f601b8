"""Training ends once step after step teaches nothing."""

from dataclasses import dataclass

import pytest

from coa.errors import NothingLearnt
from coa.learning.skipping import MOST, Skipping


@dataclass(frozen=True)
class Step:
    updates: int
    skipped: int
    not_finite: str | None = "3 advantages are not finite"


NOTHING, PART, ALL = Step(0, 2), Step(1, 1), Step(2, 0, None)


def test_training_ends_at_the_last_of_several_steps_that_taught_nothing() -> None:
    skipping = Skipping()
    for _ in range(MOST - 1):
        skipping.step(NOTHING)
    with pytest.raises(
        NothingLearnt, match=rf"^{MOST} steps in a row taught nothing; the last one: 3 advantages are not"
    ):
        skipping.step(NOTHING)
    assert skipping.total == 2 * MOST


@pytest.mark.parametrize("between", [ALL, PART, Step(0, 0, None)], ids=["all", "some", "no token"])
def test_a_step_that_was_not_skipped_altogether_begins_anew(between: Step) -> None:
    skipping = Skipping()
    for _ in range(4):
        for _ in range(MOST - 1):
            skipping.step(NOTHING)
        skipping.step(between)
    assert skipping.total == 4 * (2 * (MOST - 1) + between.skipped)
