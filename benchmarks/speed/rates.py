"""Rates of what ends one after the other, and what they say of each other."""

from collections.abc import Mapping, Sequence
from itertools import accumulate
from statistics import fmean, median, stdev
from typing import Any

from coa.planning.simulation import standard_error

Z95 = 1.959964
"""Standard deviations on each side of a 95 % interval of many values."""
T95 = {2: 12.706, 3: 4.303, 4: 3.182, 5: 2.776}
"""Of Student's distribution, two-sided, by the number of values."""


def steady(steps: int, max_staleness: int) -> tuple[int, int]:
    """(first, last) of the steps between which a loop of `steps` is in its stride: the window has filled once before
    the first, and the last batches, which engines play nothing beside, come behind the last. With too few steps for
    that, all but the first. Raises ValueError for less than three."""
    if steps < 3:
        raise ValueError(f"{steps} steps have no stride")
    first, last = max_staleness + 1, steps - max_staleness - 1
    return (first, last) if last - first >= 2 else (1, steps)


def rate(moments: Sequence[float], first: int, last: int, each: float = 1.0) -> float:
    """What ended a second between `moments[first]` and `moments[last]`, of things that count `each`."""
    return each * (last - first) / (moments[last] - moments[first])


def loop_rate(records: Sequence[Mapping[str, Any]], max_staleness: int) -> float:
    """Trajectories that a run of reinforcement trained a second, in its stride. records: of all its steps, in order."""
    first, last = steady(len(records), max_staleness)
    trained = sum(record["samples"] for record in records[first:last])
    return trained / (records[last - 1]["time"] - records[first - 1]["time"])


def loop_error(records: Sequence[Mapping[str, Any]], max_staleness: int) -> float:
    """The relative standard error of `loop_rate`."""
    first, last = steady(len(records), max_staleness)
    trained = list(accumulate(record["samples"] for record in records))
    marks = [(records[step]["time"], trained[step]) for step in range(first - 1, last)]
    return standard_error(marks) or 0.0


def whole_rate(records: Sequence[Mapping[str, Any]], wall_s: float) -> float:
    """Trajectories that a run of reinforcement trained a second in all its time, without the learners' start-up.
    wall_s: from the first group to the engines' last weights (`time.wall` of the stage's result)."""
    return sum(record["samples"] for record in records) / wall_s


def over_rounds(rounds: Sequence[Mapping[str, float]], spread: Sequence[str]) -> dict[str, float]:
    """The median of each figure over rounds, and the least and the greatest value (`_min`, `_max`) of those in
    `spread`. A figure that a round lacks was 0 there, such as the share of a state that nothing was in."""
    values = {name: [one.get(name, 0.0) for one in rounds] for name in dict.fromkeys(k for one in rounds for k in one)}
    figures = {name: float(median(found)) for name, found in values.items()}
    for name in spread:
        figures |= {f"{name}_min": min(values[name]), f"{name}_max": max(values[name])}
    return figures


def limit(loop: float, engines: float, learners: float) -> dict[str, float]:
    """How much of what its slower half can do a loop reaches, and how far apart the two halves are."""
    slower, faster = sorted((engines, learners))
    return {"ratio": loop / slower, "halves": faster / slower}


def mean_shares(records: Sequence[Mapping[str, Any]], max_staleness: int, of: str) -> dict[str, float]:
    """Shares of the time by state, in the loop's stride. of: "engine" or "learner"."""
    first, last = steady(len(records), max_staleness)
    chosen = records[first:last]
    took = [record["time"] - records[at - 1]["time"] for at, record in enumerate(chosen, first)]
    names = {name for record in chosen for name in record if name.startswith(f"{of}/")}
    return {
        name: sum(record.get(name, 0.0) * seconds for record, seconds in zip(chosen, took, strict=True)) / sum(took)
        for name in sorted(names)
    }


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % interval of the mean of 2 to 5 values."""
    half = T95[len(values)] * stdev(values) / len(values) ** 0.5
    return fmean(values) - half, fmean(values) + half


def reward_difference(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """The mean difference of two policies' rewards on the same tasks, in order, with its normal interval: the reward is
    a formula, which has no bounds."""
    apart = [x - y for x, y in zip(a, b, strict=True)]
    mean, half = fmean(apart), Z95 * stdev(apart) / len(apart) ** 0.5
    return {"reward_difference": mean, "reward_difference_low": mean - half, "reward_difference_high": mean + half}


def intervals_overlap(one: Sequence[float], other: Sequence[float]) -> bool:
    (low, high), (other_low, other_high) = interval(one), interval(other)
    return low <= other_high and other_low <= high
