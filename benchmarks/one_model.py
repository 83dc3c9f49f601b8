"""One model of the `multi` profile compared with three models of one profile each, family by family.

    python -m benchmarks.one_model --seeds 0 1 2

Each of the three is trained for as many steps as the `multi` model, all of them on its own family: three times as many
as the `multi` model has for that family. All are evaluated on the same held-out tasks. Takes about half an hour a seed
on two cores; an interrupted run is resumed, and the results of each seed are kept in `results/one_model/`.
"""

from statistics import fmean

from benchmarks.tiny_runs import RUNS, by_seeds, rates, train
from coa.demo.questions import FAMILIES
from coa.reporting.statistics import paired_difference

EPISODES = "trajectories/evaluation-rl.parquet"

Seed = dict[str, dict[str, list[float]]]
"""By family and task, the success rates of the one model and of the family's own."""


def one_seed(seed: int) -> Seed:
    folder = RUNS / "one_model"
    multi = train(folder / f"multi-{seed}", f"seed={seed}", "world.profile=multi")
    found: Seed = {}
    for family in FAMILIES:
        alone = train(folder / f"{family}-{seed}", f"seed={seed}", f"world.families=[{family}]", "evaluation.tasks=200")
        one, own = (rates(run / EPISODES, "sampled", family) for run in (multi, alone))
        found[family] = {task: [one[task], own[task]] for task in one}
    return found


def compare(seeds: list[Seed]) -> dict[str, float]:
    """By family, the success rate of each side, and the mean difference, one minus own, with its 95 % interval over
    tasks; a task's rate is its mean over seeds."""
    figures: dict[str, float] = {"seeds": len(seeds)}
    for family in FAMILIES:
        tasks = sorted(seeds[0][family])
        one, own = ([fmean(seed[family][task][side] for seed in seeds) for task in tasks] for side in (0, 1))
        difference = paired_difference(one, own)
        figures |= {
            f"{family}_one": fmean(one),
            f"{family}_own": fmean(own),
            f"{family}_difference": difference["mean"],
            f"{family}_low": difference["ci95"][0],
            f"{family}_high": difference["ci95"][1],
        }
    return figures


def main() -> None:
    targets = {f"{family}_difference": ">= -0.05" for family in FAMILIES}
    by_seeds("one_model", "One model of every profile beside three of one profile each.", one_seed, compare, targets)


if __name__ == "__main__":
    main()
