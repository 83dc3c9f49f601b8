"""The pace at which an engine computes contexts, from the times of its steps."""

import pytest

from actors.rollout.prefill import PrefillPace


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_context_takes_as_long_as_its_tokens_did_in_the_last_large_step() -> None:
    clock = Clock()
    pace = PrefillPace(clock)
    assert (pace.is_measured, pace.seconds(4096)) == (False, 0.0)
    clock.now = 500.0  # it rested
    pace.begin()
    for took_s, computed in ((2.0, [500, 500]), (0.5, []), (9.0, [40, 23]), (0.0001, [5000]), (3.0, [400, 200])):
        clock.now += took_s
        pace.stepped(computed)
    assert pace.is_measured
    assert pace.seconds(4096) == pytest.approx(4096 * 3.0 / 600)
    assert pace.seconds(50_000, most=8192) == pytest.approx(8192 * 3.0 / 600)
    clock.now += 1.0
    pace.stepped([2000])
    assert pace.seconds(2000) == pytest.approx(1.0), "the machine has become faster"


def test_a_slow_first_step_says_little_about_much_longer_ones() -> None:
    clock = Clock()
    pace = PrefillPace(clock)
    clock.now += 5.0
    pace.stepped([20])
    assert (pace.is_measured, pace.seconds(8192)) == (False, 0.0), "so few tokens say nothing"
    clock.now += 5.0
    pace.stepped([100])
    assert [pace.seconds(tokens) for tokens in (20, 100, 1000, 1600)] == pytest.approx([1.0, 5.0, 50.0, 80.0])
    assert pace.seconds(8192) == pace.seconds(100_000) == pytest.approx(80.0)


def test_no_pace_makes_an_engine_wait_for_longer_than_minutes() -> None:
    clock = Clock()
    pace = PrefillPace(clock)
    clock.now += 400.0
    pace.stepped([4000])
    assert [pace.seconds(tokens) for tokens in (4000, 4500, 4501, 32_000)] == pytest.approx(
        [400.0, 450.0, 450.0, 450.0]
    )
