"""The rate of each step, and how many steps a number of epochs are."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.config import load
from coa.errors import UserError
from coa.learning.schedule import OptimizerConfig, Schedule, learning_rate, steps_for
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe

QUICK = settings(derandomize=True, max_examples=200, deadline=None, database=None)


def rates(steps: int, **settings: object) -> list[float]:
    config = OptimizerConfig(lr=1.0, **settings)  # pyright: ignore[reportArgumentType]
    return [learning_rate(step, steps, config) for step in range(steps)]


def test_a_flat_share_of_the_steps_and_then_a_line_to_zero() -> None:
    assert rates(8, warmup_steps=2, flat_share=0.5) == [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25]
    assert rates(8)[7] == 1.0


def test_the_tiny_recipe_has_the_rates_that_its_published_figures_were_made_with() -> None:
    recipe = load(Recipe, find_recipe("tiny"))
    assert recipe.sft.steps == 700
    for step in range(700):
        line = 1.0 if step < 210 else (700 - step) / (700 - 210)
        expected = 3e-3 * min((step + 1) / 40, 1.0, line)
        assert learning_rate(step, 700, recipe.sft.learner.optimizer) == expected
    for step in range(36):
        assert learning_rate(step, 36, recipe.rl.learner.optimizer) == 3e-4 * min(1.0, (step + 1) / 5)


def test_a_constant_rate_only_warms_up() -> None:
    assert rates(5, schedule=Schedule.constant, warmup_steps=2) == [0.5, 1, 1, 1, 1]


def test_a_line_falls_from_the_end_of_the_warm_up() -> None:
    assert rates(6, schedule=Schedule.linear, warmup_steps=2) == [0.5, 1.0, 1.0, 0.75, 0.5, 0.25]


def test_a_cosine_falls_from_the_end_of_the_warm_up_to_its_floor() -> None:
    found = rates(10, schedule=Schedule.cosine, warmup_steps=2, min_share=0.1)
    expected = [0.5, 1.0, *(0.1 + 0.9 * (1 + math.cos(math.pi * i / 8)) / 2 for i in range(8))]
    assert found == pytest.approx(expected, abs=1e-12)
    assert found[6] == pytest.approx(0.55)


def test_a_warm_up_ratio_is_rounded_up_to_steps() -> None:
    assert rates(75, schedule=Schedule.cosine, warmup_ratio=0.1) == rates(75, schedule=Schedule.cosine, warmup_steps=8)
    # 0.07 * 100 is a little more than 7 in binary.
    assert rates(100, warmup_ratio=0.07) == rates(100, warmup_steps=7)


def test_a_flat_share_within_the_warm_up_lets_the_rate_be_reached() -> None:
    assert rates(4, warmup_steps=2, flat_share=0.0) == [0.5, 1.0, 1.0, 0.5]


@QUICK
@given(
    st.sampled_from(Schedule),
    st.integers(1, 300),
    st.floats(0, 1),
    st.floats(0, 1),
    st.floats(0, 1),
)
def test_rates_rise_once_and_fall_once_within_their_bounds(
    schedule: Schedule, steps: int, warm: float, floor: float, flat: float
) -> None:
    share = flat if schedule is Schedule.wsd else 1.0
    found = rates(steps, schedule=schedule, warmup_ratio=warm, min_share=floor, flat_share=share)
    top = found.index(max(found))
    assert max(found) == pytest.approx(1.0)
    assert found[:top] == sorted(found[:top])
    assert all(a >= b - 1e-12 for a, b in zip(found[top:], found[top + 1 :], strict=False))
    assert all(floor - 1e-12 <= rate for rate in found[top:])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("warmup_ratio: 0.1, warmup_steps: 3", "are both set"),
        ("schedule: cosine, flat_share: 0.5", "flat_share belongs to schedule wsd, not cosine"),
        ("min_share: 1.5", "min_share is 1.5, expected from 0 to 1"),
        ("schedule: triangle", "expected one of wsd, constant, linear, cosine"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(override: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(Recipe, None, [f"sft.learner.optimizer={{{override}}}"])


def test_epochs_are_as_many_steps_as_show_every_sample_so_often() -> None:
    assert steps_for(7607, 256, 2.5) == 75
    assert steps_for(100, 10, 2) == 20
    assert steps_for(101, 10, 2) == 21
    assert steps_for(30, 3, 0.1) == 1  # 0.1 * 30 is a little more than 3 in binary
    assert steps_for(1, 64, 0.5) == 1


def test_a_recipe_says_steps_or_epochs_and_never_both() -> None:
    sft = load(Recipe, None, ["sft.epochs=2.5", "sft.batch=256"]).sft
    assert (sft.steps, sft.steps_of(7607)) == (None, 75)
    assert load(Recipe, None, ["sft.steps=7"]).sft.steps_of(7607) == 7
    assert load(Recipe).sft.steps_of(7607) == 1000
    assert load(Recipe, None, ["sft.steps=0", "sft.epochs=2.5"]).sft.skipped
    with pytest.raises(UserError, match=r"sft\.steps and epochs are both set"):
        load(Recipe, None, ["sft.steps=7", "sft.epochs=2.5"])
    with pytest.raises(UserError, match=r"sft\.epochs is 0, expected more than 0"):
        load(Recipe, None, ["sft.epochs=0"])
