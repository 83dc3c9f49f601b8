"""What an evaluation says, with its uncertainty."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean
from typing import TypedDict

Z95 = 1.959964
"""Standard deviations on each side of a 95 % interval."""


class Estimate(TypedDict):
    mean: float
    ci95: list[float]
    """[low, high]"""
    n: int
    """Tasks, not samples: samples of one task are not independent."""


class Cost(TypedDict):
    tokens_per_success: float | None
    """None without a success."""
    tool_calls_per_success: float | None
    successes: int
    n: int
    """Attempts."""


def pass_at_1(correct: Sequence[Sequence[int]]) -> Estimate:
    """The mean over tasks of each task's success rate, and Wilson's interval at n = tasks.

    `correct[i]` holds 0 or 1 for each sample of task i. Taking a rate between 0 and 1 as if it were one draw makes
    the interval wider than it need be, never narrower. Raises ValueError without a task or without a sample.
    """
    if not correct or not all(correct):
        raise ValueError("an estimate needs at least one task, and a sample of each")
    mean = fmean(fmean(samples) for samples in correct)
    return Estimate(mean=mean, ci95=list(wilson(mean, len(correct))), n=len(correct))


def wilson(mean: float, n: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion (Wilson, 1927)."""
    centre = mean + Z95**2 / (2 * n)
    half = Z95 * sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2))
    scale = 1 + Z95**2 / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def cost_per_success(tokens: Sequence[int], tool_calls: Sequence[int], successes: Sequence[bool]) -> Cost:
    """What a success costs: everything spent, on failures too, over the number of successes. One entry an attempt."""
    if not len(tokens) == len(tool_calls) == len(successes):
        raise ValueError(f"{len(tokens)} token counts, {len(tool_calls)} call counts, {len(successes)} outcomes")
    won = sum(map(bool, successes))
    return Cost(
        tokens_per_success=sum(tokens) / won if won else None,
        tool_calls_per_success=sum(tool_calls) / won if won else None,
        successes=won,
        n=len(successes),
    )


def token_reduction(multi_agent: Cost, afm: Cost) -> float | None:
    """The share of tokens per success that the model saves against the agents it learnt from; None if unknown."""
    if not multi_agent["tokens_per_success"] or afm["tokens_per_success"] is None:
        return None
    return 1 - afm["tokens_per_success"] / multi_agent["tokens_per_success"]
