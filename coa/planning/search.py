"""Searches the best of many numbers with few evaluations, each of which is a simulation."""

from collections.abc import Callable, Sequence
from itertools import pairwise

COARSE = 5
"""Number of intervals of the first, coarse search."""


def search(numbers: Sequence[int], values: Callable[[Sequence[int]], Sequence[float]], *also: int) -> dict[int, float]:
    """Returns the values of the numbers that were tried, in their order. values: those of several numbers, which may be
    found at the same time. `also`: numbers that are tried in any case.

    Of evenly spaced numbers the best is found first. Then the intervals beside the best one are halved until its
    neighbours have been tried, which finds the maximum of values that rise up to it and fall behind it. That takes at
    most COARSE + 1 + 2 * log2(len(numbers) / COARSE) evaluations, rounded up, besides those of `also`.
    """
    last = len(numbers) - 1
    at = sorted({round(last * part / COARSE) for part in range(COARSE + 1)} | {numbers.index(one) for one in also})
    found = dict(zip(at, values([numbers[index] for index in at]), strict=True))
    while True:
        tried = sorted(found)
        best = tried.index(max(tried, key=found.__getitem__))
        beside = tried[max(0, best - 1) : best + 2]
        middles = [(low + high) // 2 for low, high in pairwise(beside) if high - low > 1]
        if not middles:
            return {numbers[index]: found[index] for index in tried}
        found |= zip(middles, values([numbers[index] for index in middles]), strict=True)
