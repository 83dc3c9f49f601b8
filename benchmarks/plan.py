"""The simulation of `coa plan` against the loop itself: trajectories per second of configurations that it did not see.

    python -m benchmarks.plan [--smoke]

Speeds and lengths are those of two runs of the recipe `benchmarks/speed/bench_loop.yaml`, taken together: with tools
that answer at once, and with slow ones. All else that the simulation is told of another configuration is its recipe and
the latency of its tools. One configuration is also predicted as `coa plan --run` does it, from the records of the run
with slow tools alone, tool latencies included. Each run has a policy that stays as it is. A prediction's error is its
distance from what was measured, as a share of that. Beside it are the standard errors of the measured speed, which a
few slow calls change, and of the predicted one.

In the simulation, engines and learners each have hardware of their own. So engines and tools have the first core here,
and everything else has the second, as in `loop_limit`.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

from benchmarks.harness import report
from benchmarks.speed.cores import divided
from benchmarks.speed.rates import loop_error, loop_rate
from benchmarks.speed.runs import AT_ONCE, SLOW, STILL, Latency, Ran, bench, measured, policy
from coa.planning import workload
from coa.planning.engine import Speeds
from coa.planning.simulation import Forecast, simulate
from coa.planning.workload import GroupWork, Recorded
from coa.time_accounts import added
from jobs.recipe.forecast import Loop, loop_of, loop_of_run, speeds_of
from jobs.recipe.schema import Recipe
from jobs.run.trajectories import read_groups

STEPS, SLOW_STEPS, GROUPS = 16, 32, 32
"""Batches of so many groups that are measured, with tools that answer at once and with others. A slow call holds up a
batch for seconds, so a few batches would tell more of their calls than of the configuration."""
TARGETS = {"worst_error": "<= 0.2", "by_run/error": "<= 0.2"}
Figures = dict[str, float]


@dataclass(frozen=True)
class Case:
    """A configuration."""

    latency: Latency
    max_concurrent: int = 256
    max_staleness: int = 4
    groups: int = GROUPS

    @property
    def name(self) -> str:
        tools = f"{self.latency.median_s * 1000:.0f}ms"
        return f"{tools}-requests{self.max_concurrent}-staleness{self.max_staleness}-groups{self.groups}"

    def overrides(self, smoke: bool) -> tuple[str, ...]:
        steps = 4 if smoke else SLOW_STEPS if self.latency.median_s else STEPS
        count = steps * GROUPS // self.groups + 2 * self.max_staleness + 2
        window = f"rl.window.max_staleness={self.max_staleness}", f"rl.window.groups_per_batch={self.groups}"
        return (*window, f"rl.steps={count}")


CALIBRATING = (Case(AT_ONCE, max_staleness=2), Case(SLOW, max_staleness=2))
MEDIUM = Latency(1.0, 4.0)
PREDICTED = (
    Case(AT_ONCE, max_staleness=0),
    Case(AT_ONCE, max_staleness=4, groups=16),
    Case(SLOW, max_staleness=0),
    Case(SLOW, max_staleness=1),
    Case(SLOW, max_staleness=4, groups=16),
    Case(MEDIUM, max_concurrent=64, max_staleness=1),
    Case(MEDIUM, max_concurrent=64, max_staleness=4),
)
SMOKE = (Case(AT_ONCE, max_staleness=0), Case(SLOW, max_staleness=1))
BY_RUN = Case(SLOW, max_staleness=1)
"""Predicted from the run of the second of CALIBRATING."""


@dataclass(frozen=True)
class WithLatency:
    """Episodes as they were recorded, and calls that take what the tool was told to."""

    groups: Sequence[Recorded]
    latency: workload.Latency

    def draw(self, random: Random) -> GroupWork:
        found = random.choice(self.groups)
        episodes = (one.turns_of([self.latency.draw(random) for _ in one.tools]) for one in found.episodes)
        return GroupWork(tuple(episodes), found.kept)


@dataclass(frozen=True)
class Known:
    """What is known of the machine and of the work."""

    speeds: Speeds
    groups: Sequence[Recorded]


def calibrated(runs: Sequence[Ran]) -> Known:
    """From several runs as if they had been one: the steps of their learners, and the decoding of their engines."""
    config, result = runs[0].config, dict(runs[0].result)
    for ran in runs[1:]:
        result = together(result, ran.result)
    groups = read_groups(runs[0].folder / "trajectories", config.rl.algorithm_of().keep)
    records = [dict(record) for ran in runs for record in ran.records]
    found = speeds_of(config, records, result, groups)
    return Known(found.speeds, groups)


def together(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The results of two runs of which the calibration takes sums and means."""
    spent = added([one["time"]["learner"], other["time"]["learner"]])
    means = {name: fmean([one[name], other[name]]) for name in ("sync_pause_mean_s", "sync_mean_s")}
    return {**one, **means, "decoding": [*one["decoding"], *other["decoding"]], "time": {"learner": spent}}


def predicted(known: Known, config: Recipe, latency: Latency) -> Forecast:
    """By the simulation of `coa plan`."""
    work = WithLatency(known.groups, workload.Latency(latency.median_s, latency.p99_s))
    return simulated(loop_of(config, known.speeds, work, ()))


def simulated(loop: Loop) -> Forecast:
    return simulate(loop.shape, loop.speeds, loop.work, warm=loop.warm)


async def measure(folder: Path, start: Path, console: Any, cases: Sequence[Case], smoke: bool) -> dict[Case, Ran]:
    found: dict[Case, Ran] = {}
    ordered = sorted(cases, key=lambda case: (case.latency.median_s, case.max_concurrent))
    for (latency, most), alike in groupby(ordered, key=lambda case: (case.latency, case.max_concurrent)):
        async with bench(folder, start, console, latency, STILL, f"engine.max_concurrent={most}") as ours:
            for case in alike:
                found[case] = await ours.run(case.name, *case.overrides(smoke))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="two cases, few steps, a policy that is hardly trained")
    smoke = parser.parse_args().smoke
    began = time.monotonic()
    cases = SMOKE if smoke else PREDICTED
    played = (*CALIBRATING, *cases)
    policy(smoke=smoke)  # on both cores
    with divided():
        runs = measured("plan", smoke, lambda folder, start, console: measure(folder, start, console, played, smoke))
    known = calibrated([runs[case] for case in CALIBRATING])
    figures: Figures = {}
    for case in cases:
        ran = runs[case]
        rate, guess = loop_rate(ran.records, case.max_staleness), predicted(known, ran.config, case.latency)
        figures |= {f"{case.name}/measured": rate, f"{case.name}/predicted": guess.trained_s}
        figures[f"{case.name}/error"] = abs(guess.trained_s / rate - 1)
        figures[f"{case.name}/measured_error"] = loop_error(ran.records, case.max_staleness)
        figures[f"{case.name}/predicted_error"] = guess.error or 0.0
    by_run = simulated(loop_of_run(runs[BY_RUN].config, runs[CALIBRATING[1]].folder)).trained_s
    figures |= {"by_run/predicted": by_run, "by_run/error": abs(by_run / figures[f"{BY_RUN.name}/measured"] - 1)}
    worst = max(cases, key=lambda case: figures[f"{case.name}/error"])
    figures["worst_error"] = figures[f"{worst.name}/error"]
    figures["worst_measured_error"] = figures[f"{worst.name}/measured_error"]
    figures["took_s"] = time.monotonic() - began
    report("plan" + "_smoke" * smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
