"""Trajectories per second by `max_staleness`, over the same code at 0, and the reward after as many samples.

    python -m benchmarks.loop_sync [--smoke]
    python -m benchmarks.loop_sync --reward SEED          at 0 and at 4; three seeds, each kept in `results/loop_sync`

At 4 the reward is measured once more with UNCORRECTED: clipped around the policy that the batch finds, which clips
nothing where a batch is one update, and without weights for a sample's age.

The work is the recipe `benchmarks/speed/bench_loop.yaml`, with tools that take 300 ms in the median and 3 s in the 99th
percentile, once or twice an episode. For the speeds the policy stays as it is, so that all play the same episodes; a
rate leaves out the first steps and the last ones. For the reward it learns REWARD_STEPS batches, and then attempts
TASKS held-out tasks, ATTEMPTS times each. With fewer than three seeds kept, no reward is told.
"""

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness import RESULTS, report
from benchmarks.speed.rates import intervals_overlap, loop_rate, mean_shares
from benchmarks.speed.runs import SLOW, STILL, bench, measured
from benchmarks.tiny_runs import kept

STEPS = {0: 24, 1: 24, 2: 28, 3: 32, 4: 44, 8: 44}
"""The target is a ratio of two of them, whose tools have a long tail: so these two are long."""
SMOKE_STEPS = {0: 3, 4: 6}
COMPARED = 4
REWARD_STEPS, TASKS, ATTEMPTS = 16, 100, 4
SEEDS = (0, 1, 2)
UNCORRECTED = ("rl.learner.loss.proximal=recomputed", "rl.learner.loss.correction=none")
TARGETS = {f"speedup_{COMPARED}": ">= 3.2"}
Figures = dict[str, float]


async def speeds(folder: Path, start: Path, console: Any, steps: dict[int, int]) -> Figures:
    figures: Figures = {}
    async with bench(folder, start, console, SLOW, STILL) as ours:
        for staleness, count in steps.items():
            window = f"rl.window.max_staleness={staleness}"
            ran = await ours.run(f"staleness-{staleness}", window, f"rl.steps={count}")
            figures[f"trajectories_s_{staleness}"] = loop_rate(ran.records, staleness)
            figures[f"speedup_{staleness}"] = figures[f"trajectories_s_{staleness}"] / figures["trajectories_s_0"]
            for who in ("engine", "learner"):
                for name, share in mean_shares(ran.records, staleness, who).items():
                    figures[f"{name}_{staleness}"] = share
    return figures


async def rewards(folder: Path, start: Path, console: Any, seed: int) -> dict[str, float]:
    """The mean reward on held-out tasks, by staleness."""
    found: dict[str, float] = {}
    cases = (("0", 0, ()), (f"{COMPARED}", COMPARED, ()), (f"{COMPARED}_uncorrected", COMPARED, UNCORRECTED))
    async with bench(folder, start, console, SLOW, f"seed={seed}", f"rl.steps={REWARD_STEPS}") as ours:
        for name, staleness, overrides in cases:
            await ours.run(f"staleness-{name}", f"rl.window.max_staleness={staleness}", *overrides)
            found[name] = await ours.reward(TASKS, ATTEMPTS)
    return found


def compared(found: Sequence[dict[str, float]]) -> Figures:
    """Means over seeds of the rewards, and whether their 95 % intervals overlap (1.0). found: of each seed."""
    means = {f"reward_{name}": fmean([one[name] for one in found]) for name in found[0]}
    sync, late = ([one[str(staleness)] for one in found] for staleness in (0, COMPARED))
    return {**means, "rewards_overlap": float(intervals_overlap(sync, late))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="fewer steps, from a policy that is hardly trained")
    parser.add_argument("--reward", type=int, metavar="SEED", choices=SEEDS)
    given = parser.parse_args()
    began = time.monotonic()
    if given.reward is not None:
        seed: int = given.reward

        def measure(seed: int) -> dict[str, float]:
            return measured("loop_sync", False, lambda folder, start, console: rewards(folder, start, console, seed))

        kept("loop_sync", seed, measure)
        return
    steps = SMOKE_STEPS if given.smoke else STEPS
    figures = measured("loop_sync", given.smoke, lambda folder, start, console: speeds(folder, start, console, steps))
    targets = dict(TARGETS)
    if all((RESULTS / "loop_sync" / f"seed-{seed}.json").exists() for seed in SEEDS):
        figures |= compared([kept("loop_sync", seed, lambda seed: {}) for seed in SEEDS])
        targets["rewards_overlap"] = ">= 1"
    figures["took_s"] = time.monotonic() - began
    report("loop_sync" + "_smoke" * given.smoke, figures, targets)


if __name__ == "__main__":
    main()
