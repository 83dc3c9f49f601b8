"""Trajectories per second by `max_staleness`, over the same code at 0, and the reward after as many samples.

    python -m benchmarks.loop_sync [--smoke]
    python -m benchmarks.loop_sync --reward SEED          at 0 and at 4; three seeds, each kept in `results/loop_sync`

Staleness 0 and 4 are measured in turns, ROUNDS times; the speedup at 4 is the median of the rounds' ratios, with the
least and the greatest beside it. Each other staleness is measured once, against the median speed at 0. With three seeds
kept, `--reward` compares their rewards, a result of its own with the seeds' commit; `--mixed` allows several.

At 4 the reward is measured once more with UNCORRECTED: clipped around the policy that the batch finds, which clips
nothing where a batch is one update, and without weights for a sample's age.

The work is the recipe `benchmarks/speed/bench_loop.yaml`, with tools that take 300 ms in the median and 3 s in the 99th
percentile, once or twice an episode. For the speeds the policy stays as it is, so that all play the same episodes; a
rate leaves out the first steps and the last ones. For the reward it learns REWARD_STEPS batches, as many as the recipe
`tiny`, and then attempts TASKS held-out tasks, ATTEMPTS times each.
"""

import argparse
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.harness import MIXED, refuse_mixed, report
from benchmarks.speed.rates import intervals_overlap, loop_rate, mean_shares, over_rounds, reward_difference
from benchmarks.speed.runs import SLOW, STILL, Bench, bench, measured
from benchmarks.tiny_runs import commits_of, kept, path_of, read_kept

COMPARED = 4
ROUNDS = 3
IN_TURNS, SMOKE_IN_TURNS = {0: 18, COMPARED: 34}, {0: 3, COMPARED: 6}
"""Steps by staleness, in every round."""
ONCE = {1: 24, 2: 24, 3: 28, 8: 36}
REWARD_STEPS, TASKS, ATTEMPTS = 36, 400, 4
SEEDS = (0, 1, 2)
UNCORRECTED = ("rl.learner.loss.proximal=recomputed", "rl.learner.loss.correction=none")
TARGETS = {f"speedup_{COMPARED}": ">= 3.2"}
REWARD_TARGETS = {"rewards_overlap": ">= 1", "reward_difference": ">= -0.03"}
"""With three seeds, intervals of means are wide enough to overlap at a difference of .1. Two runs with the same seed
differ by up to .03, because asynchronous runs don't repeat exactly."""
Figures = dict[str, float]


async def speed(ours: Bench, name: str, staleness: int, steps: int) -> Figures:
    """The loop's speed, and what engines and learners spent their time with."""
    ran = await ours.run(name, f"rl.window.max_staleness={staleness}", f"rl.steps={steps}")
    shares = (mean_shares(ran.records, staleness, who) for who in ("engine", "learner"))
    found = {"trajectories_s": loop_rate(ran.records, staleness)} | {k: v for one in shares for k, v in one.items()}
    return {f"{figure}_{staleness}": value for figure, value in found.items()}


def speedup(figures: Figures, sync: Figures, staleness: int) -> Figures:
    """figures: of that staleness. sync: of staleness 0."""
    return {f"speedup_{staleness}": figures[f"trajectories_s_{staleness}"] / sync["trajectories_s_0"]}


async def speeds(
    folder: Path, start: Path, console: Any, in_turns: Mapping[int, int], once: Mapping[int, int], rounds: int
) -> Figures:
    """in_turns, once: steps by staleness."""
    of_rounds: list[Figures] = []
    async with bench(folder, start, console, SLOW, STILL) as ours:
        for number in range(rounds):
            found: Figures = {}
            for staleness, steps in in_turns.items():
                found |= await speed(ours, f"staleness-{staleness}-{number}", staleness, steps)
            of_rounds.append(found | speedup(found, found, COMPARED))
        figures = over_rounds(of_rounds, spread=(f"speedup_{COMPARED}",))
        for staleness, steps in once.items():
            found = await speed(ours, f"staleness-{staleness}", staleness, steps)
            figures |= found | speedup(found, figures, staleness)
    return figures


Rewards = dict[str, list[float]]
"""By staleness, the mean reward on each held-out task."""


async def rewards(folder: Path, start: Path, console: Any, seed: int) -> Rewards:
    found: Rewards = {}
    cases = (("0", 0, ()), (f"{COMPARED}", COMPARED, ()), (f"{COMPARED}_uncorrected", COMPARED, UNCORRECTED))
    async with bench(folder, start, console, SLOW, f"seed={seed}", f"rl.steps={REWARD_STEPS}") as ours:
        for name, staleness, overrides in cases:
            await ours.run(f"staleness-{name}", f"rl.window.max_staleness={staleness}", *overrides)
            found[name] = await ours.rewards(TASKS, ATTEMPTS)
    return found


def compared(found: Sequence[Rewards]) -> Figures:
    """Means over seeds of the rewards, whether their 95 % intervals over seeds overlap (1.0), and the difference on the
    same tasks with its interval over tasks. found: of each seed."""
    means = {f"reward_{name}": fmean(fmean(one[name]) for one in found) for name in found[0]}
    sync, late = ([one[str(staleness)] for one in found] for staleness in (0, COMPARED))
    by_task = ([fmean(task) for task in zip(*seeds, strict=True)] for seeds in (late, sync))
    return {
        **means,
        "rewards_overlap": float(intervals_overlap(*([fmean(one) for one in seeds] for seeds in (sync, late)))),
        **reward_difference(*by_task),
    }


def measure_reward(seed: int, *, mixed: bool) -> None:
    def measure(seed: int) -> Rewards:
        return measured("loop_sync", False, lambda folder, start, console: rewards(folder, start, console, seed))

    kept("loop_sync", seed, measure)
    paths = {one: path_of("loop_sync", one) for one in SEEDS}
    if missing := [one for one, path in paths.items() if not path.exists()]:
        print(f"the rewards are compared when seeds {missing} are measured too")
        return
    commits = commits_of("loop_sync", SEEDS)
    if not mixed:
        refuse_mixed("loop_sync_reward", commits)
    figures = compared([read_kept(path).found for path in paths.values()])
    report("loop_sync_reward", figures, REWARD_TARGETS, commits)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="fewer steps, from a policy that is hardly trained")
    parser.add_argument("--reward", type=int, metavar="SEED", choices=SEEDS)
    parser.add_argument("--mixed", action="store_true", help=MIXED)
    given = parser.parse_args()
    if given.reward is not None:
        measure_reward(given.reward, mixed=given.mixed)
        return
    began = time.monotonic()
    how = (SMOKE_IN_TURNS, {}, 1) if given.smoke else (IN_TURNS, ONCE, ROUNDS)
    figures = measured("loop_sync", given.smoke, lambda folder, start, console: speeds(folder, start, console, *how))
    figures["took_s"] = time.monotonic() - began
    report("loop_sync" + "_smoke" * given.smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
