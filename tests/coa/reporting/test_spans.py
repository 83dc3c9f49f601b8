"""Spans of time."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from coa.reporting.spans import SteadyClock, overlap, total, union

span = st.tuples(st.integers(0, 20), st.integers(0, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))
spans = st.lists(span, max_size=8)


def seconds(of: Any) -> set[int]:
    """The whole seconds in which one of them ran."""
    return {second for begin, end in of for second in range(begin, end)}


def test_a_clock_that_is_steady_does_not_jump_with_the_wall_clock() -> None:
    wall, elapsed = [1.8e9], [50.0]
    clock = SteadyClock(lambda: wall[0], lambda: elapsed[0])
    assert clock() == 1.8e9
    for jump in (3600.0, -7200.0):
        wall[0] += jump
        elapsed[0] += 2.0
    assert clock() == 1.8e9 + 4.0


def test_spans_that_touch_or_overlap_become_one() -> None:
    assert union([(3, 5), (0, 1), (1, 2), (4, 9), (4, 6)]) == [(0, 2), (3, 9)]
    assert union([(1, 1), (2, 2)]) == []
    assert union([]) == []


def test_moments_that_are_covered_twice_count_once() -> None:
    assert total([(0, 4), (1, 2), (3, 9)]) == 9
    assert overlap([(0, 4)], [(1, 2), (3, 9)]) == 2
    assert overlap([(0, 4), (0, 4)], [(1, 2), (1, 2)]) == 1
    assert overlap([(0, 4)], []) == 0


@settings(derandomize=True, max_examples=150, deadline=None, database=None)
@given(ours=spans, others=spans)
def test_totals_and_overlaps_are_those_of_counting_seconds(ours: Any, others: Any) -> None:
    assert total(ours) == len(seconds(ours))
    assert overlap(ours, others) == overlap(others, ours) == len(seconds(ours) & seconds(others))
