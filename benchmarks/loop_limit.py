"""The whole loop over the slower of its halves: trajectories per second on the same work and the same cores.

    python -m benchmarks.loop_limit [--smoke]

The work is the recipe `benchmarks/speed/bench_loop.yaml` with a policy that stays as it is, so that all sides play and
learn the same episodes. Engines and tools have the first core; learners, driver, buffer and Ray the second: the same
in all measurements. A half alone leaves the other core idle, where a machine may be faster than it ever is in the
loop; so each half is measured beside a core that computes all along, and the plain ratio stands beside it. Tools
answer at once, or take 300 ms in the median and 3 s in the 99th percentile, once or twice an episode.

All of it is measured ROUNDS times, one after the other; a figure is the median over rounds, a ratio that of the rounds'
ratios, with the least and the greatest beside it.

Rates are those of the stride (`benchmarks.speed.rates.steady`). Learners alone learn the batches that the loop recorded
and publish after each, as in the loop. `core/...` is the share of a core that processes had in the loop's stride,
`engines/core/...` that while engines played alone.
"""

import argparse
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from benchmarks.speed.cores import ENGINES, OTHERS, Divided, busy, divided
from benchmarks.speed.rates import limit, loop_rate, mean_shares, over_rounds, rate, steady
from benchmarks.speed.runs import AT_ONCE, SLOW, STILL, Bench, Latency, Ran, bench, learners_alone, measured, policy

STEPS, SMOKE_STEPS = 20, 8
ROUNDS = 3
APART = 10_000
"""Between the first groups of two measurements: no prompt is cached for the next."""
RATIOS = ("0ms/ratio", "slow/ratio", "0ms/ratio_plain", "slow/ratio_plain")
TARGETS = {"0ms/ratio": ">= 0.9", "slow/ratio": ">= 0.9", "0ms/halves": "<= 1.5", "slow/halves": "<= 1.5"}
Figures = dict[str, float]


async def engines(bench: Bench, ran: Ran, first: int, load: bool) -> float:
    """Trajectories per second of the engines alone, with as many groups under way as the loop's window has."""
    config = ran.config.rl
    at_once = (config.window.max_staleness + 1) * config.window.groups_per_batch
    with ExitStack() as stack:
        if load:
            stack.enter_context(busy(OTHERS))
        ended = await bench.engines_alone(range(first, first + 3 * at_once), at_once)
    return rate(ended, at_once, 2 * at_once, config.group)


async def learners(ran: Ran, console: Any, load: bool) -> float:
    with ExitStack() as stack:
        if load:
            stack.enter_context(busy(ENGINES))
        ended = await learners_alone(ran, console)
    config = ran.config.rl
    first, last = steady(len(ended), config.window.max_staleness)
    return rate(ended, first - 1, last - 1, config.group * config.window.groups_per_batch)


def of_loop(ran: Ran, cores: Divided) -> Figures:
    """Its rate, and what it spent its time with."""
    staleness = ran.config.rl.window.max_staleness
    first, last = steady(len(ran.records), staleness)
    shares = cores.shares(ran.records[first - 1]["time"], ran.records[last - 1]["time"])
    return {
        "loop": loop_rate(ran.records, staleness),
        **mean_shares(ran.records, staleness, "engine"),
        **mean_shares(ran.records, staleness, "learner"),
        "sync_pause_s": ran.result["sync_pause_mean_s"],
        "sync_s": ran.result["sync_mean_s"],
        "staleness_mean": ran.result["staleness_mean"],
        **{f"core/{name}": share for name, share in shares.items()},
    }


async def one_latency(folder: Path, start: Path, console: Any, latency: Latency, steps: int, cores: Divided) -> Any:
    """(figures, the loop's run) of tools of a latency, but for the learners alone."""
    async with bench(folder, start, console, latency, STILL, f"rl.steps={steps}") as ours:
        ran = await ours.run("slow" if latency.median_s else "at_once")
        found = of_loop(ran, cores)
        began = time.time()
        found["engines"] = await engines(ours, ran, APART, load=True)
        found |= {f"engines/core/{name}": share for name, share in cores.shares(began, time.time()).items()}
        found["engines_plain"] = await engines(ours, ran, 2 * APART, load=False)
    return found, ran


async def one_round(folder: Path, start: Path, console: Any, steps: int, cores: Divided) -> Figures:
    figures: Figures = {}
    halves: Figures = {}
    for name, latency in (("0ms", AT_ONCE), ("slow", SLOW)):
        found, ran = await one_latency(folder, start, console, latency, steps, cores)
        if not halves:  # tools are nothing to learners
            halves = {
                "learners": await learners(ran, console, load=True),
                "learners_plain": await learners(ran, console, load=False),
            }
        figures |= {f"{name}/{key}": value for key, value in found.items()}
        figures |= {
            f"{name}/{key}": value for key, value in limit(found["loop"], found["engines"], halves["learners"]).items()
        }
        plain = limit(found["loop"], found["engines_plain"], halves["learners_plain"])
        figures[f"{name}/ratio_plain"] = plain["ratio"]
    return figures | halves


async def measure(folder: Path, start: Path, console: Any, steps: int, rounds: int, cores: Divided) -> Figures:
    found = [await one_round(folder, start, console, steps, cores) for _ in range(rounds)]
    return over_rounds(found, spread=RATIOS)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="fewer steps, from a policy that is hardly trained")
    smoke = parser.parse_args().smoke
    policy(smoke=smoke)  # on both cores
    began = time.monotonic()
    with divided() as cores:
        steps, rounds = (SMOKE_STEPS, 1) if smoke else (STEPS, ROUNDS)
        figures = measured(
            "loop_limit", smoke, lambda folder, start, console: measure(folder, start, console, steps, rounds, cores)
        )
    figures["took_s"] = time.monotonic() - began
    report("loop_limit" + "_smoke" * smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
