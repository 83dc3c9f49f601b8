"""The teacher fallback of RL, compared with plain RL from the same fine-tuned model, on the same held-out tasks.

    python -m benchmarks.teacher_fallback --seeds 0 1 2

The model is fine-tuned on runs of a team that opens a web page for one kind of question in four, and answers the others
from search snippets, most of which are outdated. So it can open pages, but does not for three kinds of question. The
team of the fallback opens a page half of the time, whatever the kind, and the policy imitates its right runs. Both
sides begin with the same fine-tuned model and have the same number of steps; the side with the fallback sees more
demonstrations. There are two comparisons: over all held-out tasks, and over those that plain RL does not solve. The
latter are the tasks whose attempts all fail after plain RL with another seed, so they are chosen by a model of neither
side. Takes about a quarter of an hour a seed on two cores; an interrupted run is resumed, and the results of each seed
are kept in `results/teacher_fallback/`.
"""

from pathlib import Path
from statistics import fmean

from benchmarks.tiny_runs import RUNS, by_seeds, coa, compared, outcomes, train, tuned_copy

WORLD = ("world.families=[web]", "world.stale=0.8", "world.held_out=0.7")
NARROW = ("world.experts.lazy_web=[1,1,1,0.1]", "distill.runs=30000")
SETTINGS = (
    *WORLD,
    "world.experts.lazy_web=[0.5,0.5,0.5,0.5]",
    "sft.steps=300",
    "rl.steps=20",
    "evaluation.tasks=1040",
    "evaluation.samples=2",
)
HELPED = ("rl.teacher_fallback.attempts=1", "rl.teacher_fallback.share=0.5")

Seed = dict[str, list[list[bool]]]
"""By task, the outcomes of plain RL and of RL with the team: the greedy one, then the samples."""


def one_seed(seed: int) -> Seed:
    folder, narrow = RUNS / "teacher_fallback", RUNS / "teacher_fallback" / "narrow"
    if not (narrow / "checkpoints" / "distill.json").exists():
        coa("distill", "--recipe", "tiny", f"run_dir={narrow}", *WORLD, *NARROW)
    settings = (*SETTINGS, f"seed={seed}", f"sft.data=[{narrow / 'data'}]")
    plain = train(folder / f"plain-{seed}", *settings)
    helped = train(tuned_copy(plain, folder / f"helped-{seed}"), *settings, *HELPED)
    one, other = (every_outcome(run / "trajectories" / "evaluation-rl.parquet") for run in (plain, helped))
    return {task: [one[task], other[task]] for task in one}


def every_outcome(episodes: Path) -> dict[str, list[bool]]:
    greedy, sampled = (outcomes(episodes, mode) for mode in ("greedy", "sampled"))
    return {task: [*greedy[task], *sampled[task]] for task in greedy}


def compare(seeds: list[Seed]) -> dict[str, float]:
    """A task's rate is its mean over the seeds; in the second comparison over those whose neighbour left it at zero.
    The intervals are over tasks, and each seed's difference stands beside them."""
    every: dict[str, list[tuple[float, float]]] = {}
    left: dict[str, list[tuple[float, float]]] = {}
    for seed, neighbour in zip(seeds, [*seeds[1:], seeds[0]], strict=True):
        for task, sides in seed.items():
            rates = fmean(sides[0][1:]), fmean(sides[1][1:])
            every.setdefault(task, []).append(rates)
            if not any(neighbour[task][0]):
                left.setdefault(task, []).append(rates)
    figures: dict[str, float] = {"seeds": len(seeds)}
    for name, found in (("all", every), ("left_at_zero", left)):
        before, after = ([fmean(pair[side] for pair in pairs) for pairs in found.values()] for side in (0, 1))
        figures |= compared(name, after, before)
    for number, seed in enumerate(seeds):
        figures[f"all_difference_{number}"] = fmean(fmean(two[1:]) - fmean(one[1:]) for one, two in seed.values())
    return figures


def main() -> None:
    targets = {"left_at_zero_low": ">= 0", "left_at_zero_tasks": ">= 500"}
    by_seeds("teacher_fallback", "Teachers in the RL loop, against plain RL.", one_seed, compare, targets)


if __name__ == "__main__":
    main()
