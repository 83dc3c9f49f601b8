"""Statistics of an evaluation: pass rates and costs, with confidence intervals."""

from collections.abc import Sequence
from math import comb, sqrt
from statistics import fmean, pvariance, variance
from typing import TypedDict

from coa.agent.best_of import Candidate, majority

Z95 = 1.959964
"""Standard deviations on each side of a 95 % interval."""


class Estimate(TypedDict):
    mean: float
    ci95: list[float]
    """[low, high]"""
    n: int
    """Number of tasks, not samples: samples of one task are not independent."""


class Cost(TypedDict):
    tokens_per_success: float | None
    """Tokens of all attempts per success; None if there was no success."""
    tool_calls_per_success: float | None
    successes: int
    n: int
    """Number of attempts."""


def pass_at_1(correct: Sequence[Sequence[int]]) -> Estimate:
    """The mean over tasks of each task's success rate, and Wilson's interval at n = tasks.

    `correct[i]` holds 0 or 1 for each sample of task i. Taking a rate between 0 and 1 as if it were one draw makes
    the interval wider than it need be, never narrower. Raises ValueError without a task or without a sample.
    """
    if not correct or not all(correct):
        raise ValueError("an estimate needs at least one task, and a sample of each")
    mean = fmean(fmean(samples) for samples in correct)
    return Estimate(mean=mean, ci95=list(wilson(mean, len(correct))), n=len(correct))


def mean_at_k(correct: Sequence[Sequence[int]]) -> Estimate:
    """avg@k: the mean over tasks of each task's success rate, with an interval that accounts for clustering by task.

    Samples of one task are correlated, so k samples of n tasks are worth between n and k * n independent draws; the
    number is estimated from the variance between the tasks' rates. Wilson's interval is taken at that effective sample
    size (Kish, 1965); `pass_at_1` assumes the minimum, n.
    """
    if not correct or not all(correct):
        raise ValueError("an estimate needs at least one task, and a sample of each")
    return _over_tasks([fmean(samples) for samples in correct], draws=sum(map(len, correct)))


def pass_at_k(correct: Sequence[Sequence[int]], k: int) -> Estimate:
    """The unbiased estimate of the probability that any of k samples is right: 1 - C(n - c, k) / C(n, k) for c right of
    n (Chen et al., arXiv 2107.03374). Raises ValueError without a task, or for a task of fewer than k samples."""
    if not correct or k < 1 or min(map(len, correct)) < k:
        raise ValueError(f"pass@{k} needs at least one task, and {k} samples of each")
    solved = [1 - comb(len(samples) - sum(samples), k) / comb(len(samples), k) for samples in correct]
    return _over_tasks(solved, draws=sum(len(samples) // k for samples in correct))


def majority_at_k(votes: Sequence[Sequence[str]], correct: Sequence[Sequence[int]]) -> Estimate:
    """The share of tasks whose most frequent answer is right; of equally frequent answers, the first counts.

    `votes[i]` holds each sample's normalized answer to task i; "" is no answer and has no vote.
    """
    elected = [
        float(right[majority([Candidate(vote) for vote in given])]) if any(given) else 0.0
        for given, right in zip(votes, correct, strict=True)
    ]
    return _over_tasks(elected, draws=len(elected))


def _over_tasks(rates: Sequence[float], draws: int) -> Estimate:
    """Wilson's interval at the effective sample size estimated from the tasks' rates, between their number and
    `draws`."""
    mean, n = fmean(rates), len(rates)
    effective: float = n
    if n > 1 and 0 < mean < 1:
        spread = variance(rates, mean)
        effective = min(draws, max(n, mean * (1 - mean) * n / spread)) if spread else draws
    return Estimate(mean=mean, ci95=list(wilson(mean, effective)), n=n)


def wilson(mean: float, n: float) -> tuple[float, float]:
    """The 95 % score interval of a proportion of n draws (Wilson, 1927)."""
    centre = mean + Z95**2 / (2 * n)
    half = Z95 * sqrt(mean * (1 - mean) / n + Z95**2 / (4 * n**2))
    scale = 1 + Z95**2 / n
    return max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale)


def cost_per_success(tokens: Sequence[int], tool_calls: Sequence[int], successes: Sequence[bool]) -> Cost:
    """Cost per success: everything spent, on failures too, over the number of successes. One entry per attempt."""
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


def paired_difference(a: Sequence[float], b: Sequence[float], samples: int = 1) -> Estimate:
    """The mean of a - b, two success rates of the same tasks in order, with a 95 % interval within [-1, 1].

    The distances to the score limits of either mean are combined with the correlation of the rates (Newcombe,
    Statistics in Medicine 17, 1998, p. 2635, method 10, with its correction of the correlation; for other means than
    proportions: Zou and Donner, Statistics in Medicine 27, 2008, p. 1693). `samples`: attempts at a task behind a rate.
    """
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} rates are not of the same tasks")
    first, second = (_over_tasks(rates, draws=samples * len(rates)) for rates in (a, b))
    mean, related = first["mean"] - second["mean"], _correlation(a, b)
    (down_a, up_a), (down_b, up_b) = (
        (one["mean"] - one["ci95"][0], one["ci95"][1] - one["mean"]) for one in (first, second)
    )

    def reach(one: float, other: float) -> float:
        return sqrt(max(0.0, one**2 + other**2 - 2 * related * one * other))

    low, high = mean - reach(down_a, up_b), mean + reach(up_a, down_b)
    return Estimate(mean=mean, ci95=[max(-1.0, low), min(1.0, high)], n=len(a))


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """The correlation of two rates of the same tasks, with Newcombe's correction towards 0 if it is positive."""
    n, mean_a, mean_b = len(a), fmean(a), fmean(b)
    spread = sqrt(pvariance(a, mean_a) * pvariance(b, mean_b))
    if not spread:
        return 0.0
    together = fmean((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    return max(0.0, together - 1 / (2 * n)) / spread if together > 0 else together / spread
