"""How many of something a load needs."""

import math
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from coa.scaling import Pace, banded


def test_between_adding_and_taking_away_nothing_changes() -> None:
    found = [banded(need, 2, 0.7) for need in (0.0, 0.7, 0.71, 1.4, 2.0, 2.01, 3.5)]
    assert found == [0, 1, 2, 2, 2, 3, 4]


def test_a_number_turns_only_after_its_cool_down() -> None:
    pace = Pace(60.0)
    assert [pace.allows(step, 0.0) for step in (1, -1)] == [True, True], "there was nothing before"
    pace = pace.took(1, 0.0)
    assert pace.allows(2, 1.0), "more of the same"
    assert [pace.allows(-1, now) for now in (1.0, 59.9, 60.0)] == [False, False, True]
    pace = pace.took(1, 40.0)
    assert [pace.allows(-1, now) for now in (60.0, 99.9, 100.0)] == [False, False, True]


def test_a_number_that_turns_again_and_again_does_so_ever_later() -> None:
    pace, now, turned = Pace(60.0).took(1, 0.0), 0.0, []
    for step in (-1, 1, -1, 1, -1, 1):
        while not pace.allows(step, now):
            now += 1.0
        pace = pace.took(step, now)
        turned.append(now)
    assert [later - earlier for earlier, later in pairwise([0.0, *turned])] == [60.0, 120.0, 240.0, 480.0, 960.0, 960.0]
    assert pace.took(-1, now + 3000.0).times == 1, "it was quiet for long enough"


@given(st.lists(st.tuples(st.floats(0, 50), st.sampled_from([-2, -1, 1, 2])), max_size=60))
def test_no_span_of_a_cool_down_has_two_turns(wishes: list[tuple[float, int]]) -> None:
    pace, now, last, turns = Pace(60.0), 0.0, 0, [-math.inf]
    for pause, step in wishes:
        now += pause
        if pace.allows(step, now):
            if step * last < 0:
                turns.append(now)
            pace, last = pace.took(step, now), step
    assert all(later - earlier >= 60.0 for earlier, later in pairwise(turns))
