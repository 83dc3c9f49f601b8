"""Spans of time: how much of one kind of work ran while another did, in whatever processes."""

import time
from collections.abc import Callable, Iterable

Times = list[tuple[float, float]]
"""(begin, end) pairs, in seconds."""


class SteadyClock:
    """Seconds since 1970, by the wall clock at the beginning and from then on by a clock that never jumps. So a span
    never ends before it begins, and spans of different hosts can be compared."""

    def __init__(self, wall: Callable[[], float] = time.time, elapsed: Callable[[], float] = time.monotonic) -> None:
        self._elapsed, self._offset = elapsed, wall() - elapsed()

    def __call__(self) -> float:
        return self._offset + self._elapsed()


steady = SteadyClock()
"""This process's."""


def union(spans: Iterable[tuple[float, float]]) -> Times:
    """Merges spans into disjoint spans in order."""
    merged: Times = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        elif end > begin:
            merged.append((begin, end))
    return merged


def total(spans: Iterable[tuple[float, float]]) -> float:
    return sum(end - begin for begin, end in union(spans))


def overlap(ours: Iterable[tuple[float, float]], others: Iterable[tuple[float, float]]) -> float:
    """Seconds of `ours` in which one of `others` ran too: union([0,4]) with [1,2], [3,9] is 2."""
    a, b = union(ours), union(others)
    seconds, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        seconds += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return seconds
