"""Spans of wall-clock time, and the overlap of two kinds of work."""

from collections.abc import Iterable

Times = list[tuple[float, float]]
"""(begin, end) pairs, in seconds."""


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
