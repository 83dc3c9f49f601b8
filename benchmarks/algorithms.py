"""Compares all algorithms on the tiny recipe: sampled pass@1 on held-out tasks, and the reward over the steps.

    python -m benchmarks.algorithms [--only ppo gspo] [--seeds 0 1 2]
    python -m benchmarks.algorithms --table            writes table and curves into `docs/algorithms.md`

The runs of a seed begin with the same fine-tuned model, and use the recipe's number of steps and its staleness of 2.
Algorithms in SEEDED are run for three seeds, the others for seed 0. A seed takes ten minutes on two cores for its
fine-tuned model, and three for each algorithm; an interrupted run is resumed, and results are kept in
`results/algorithms/`.
"""

import argparse
import json
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from statistics import fmean
from typing import Any, TypedDict

from benchmarks.harness import MIXED, ROOT, by_commit, commit, refuse_mixed, report
from benchmarks.table import filled
from benchmarks.tiny_runs import RUNS, Kept, kept, path_of, read_kept, train, tuned_copy
from coa.reporting.curves import smooth
from coa.reporting.metrics import read_metrics

WAYS: Mapping[str, tuple[str, ...]] = {
    "dapo": (),
    "grpo": (
        "rl.learner.loss.clip_high=0.2",
        "rl.window.max_refills=0",
        "rl.algorithm_settings.kl_weight=0.001",
    ),
    "ppo": ("rl.algorithm=ppo", "rl.learner.value_head.lr=1e-3"),
    "gspo": ("rl.algorithm=gspo", "rl.algorithm_settings.clip_low=0.03", "rl.algorithm_settings.clip_high=0.04"),
    "dr_grpo": ("rl.algorithm=dr_grpo", "rl.algorithm_settings.length=64"),
    "rloo": ("rl.algorithm=rloo",),
    "reinforce_pp": ("rl.algorithm=reinforce_pp",),
    "reinforce_pp with baseline": ("rl.algorithm=reinforce_pp", "rl.algorithm_settings.baseline=true"),
    "cispo": ("rl.algorithm=cispo",),
    "gspo with the paper's clips": ("rl.algorithm=gspo",),
}
"""By name, what differs from the tiny recipe, which is DAPO. The fewer tokens a sequence has, the further a step moves
its ratio, and the tiny recipe's have thirty: so the clips of GSPO are a hundred times the paper's."""
SEEDED, SEEDS = ("dapo", "grpo", "ppo", "gspo"), (0, 1, 2)
TARGET = 0.9
COLUMNS = 4
DOCUMENT, CURVES = ROOT / "docs" / "algorithms.md", ROOT / "docs" / "algorithms.png"
BEGIN = "<!-- table: python -m benchmarks.algorithms --table -->"


class Found(TypedDict):
    """What a run came to."""

    before: float
    """Sampled pass@1 of the fine-tuned model."""
    after: float
    low: float
    """Of the 95 % interval of `after`, over tasks."""
    high: float
    greedy: float
    seconds: float
    """Of the RL stage."""
    rewards: list[float]
    """Of the groups that were played in a step, by step; one in which none ended is left out."""


def folder_of(name: str) -> str:
    return name.replace(" ", "_").replace("'", "")


def run(name: str, seed: int) -> Found:
    """Trains the run of DAPO first, whose fine-tuned model and data the others take."""
    first = train(RUNS / "algorithms" / f"dapo-{seed}", f"seed={seed}", *WAYS["dapo"])
    if name == "dapo":
        return found_in(first)
    folder = tuned_copy(first, RUNS / "algorithms" / f"{folder_of(name)}-{seed}")
    return found_in(train(folder, f"seed={seed}", f"sft.data=[{first / 'data'}]", *WAYS[name]))


def found_in(folder: Path) -> Found:
    told = json.loads((folder / "report.json").read_text())
    before, after = told["evaluation"]["sft"], told["evaluation"]["rl"]
    low, high = after["pass_at_1"]["ci95"]
    records = read_metrics(folder / "metrics.jsonl")
    return Found(
        before=before["pass_at_1"]["mean"],
        after=after["pass_at_1"]["mean"],
        low=low,
        high=high,
        greedy=after["greedy"]["mean"],
        seconds=told["stages"]["rl"]["seconds"],
        rewards=[round(record["reward"], 4) for record in records if record["stage"] == "rl" and "reward" in record],
    )


Results = Mapping[str, Mapping[int, Kept[Found]]]


def results() -> Results:
    """What was kept, by name and seed."""
    found: dict[str, dict[int, Kept[Found]]] = {}
    for name in WAYS:
        paths = {seed: path_of(f"algorithms/{folder_of(name)}", seed) for seed in SEEDS}
        found[name] = {seed: read_kept(path) for seed, path in paths.items() if path.exists()}
    return found


def commits(found: Results) -> dict[str, str]:
    """The commit of each run, by its name and seed."""
    return {f"{name} {seed}": one.commit for name, seeds in found.items() for seed, one in seeds.items()}


def table(found: Results) -> str:
    """With a line for the commit of all runs, or of each commit's runs if there are several."""
    rows = [
        "| algorithm | changes to the recipe | seed | before | sampled pass@1 | greedy |",
        "|---|---|---|---|---|---|",
    ]
    for name, seeds in found.items():
        changes = "<br>".join(f"`{change}`" for change in WAYS[name])
        for seed, one in ((seed, run.found) for seed, run in seeds.items()):
            after = f"{one['after']:.3f} ({one['low']:.3f} to {one['high']:.3f})"
            rows.append(f"| {name} | {changes} | {seed} | {one['before']:.3f} | {after} | {one['greedy']:.3f} |")
    of = by_commit(commits(found))
    for its_commit, names in of.items():
        rows.append(f"\nCommit of {'all runs' if len(of) == 1 else ', '.join(names)}: {its_commit}.")
    return "\n".join(rows)


def draw(found: Results, path: Path) -> None:
    """A panel for each algorithm, with a line for each seed, over those of all others."""
    from matplotlib.figure import Figure

    rows = ceil(len(found) / COLUMNS)
    figure = Figure(figsize=(11, 2.5 * rows), layout="constrained", dpi=110)
    panels: list[Any] = list(figure.subplots(rows, COLUMNS, sharex=True, sharey=True).flat)
    lines = {name: [smooth(one.found["rewards"], 1) for one in seeds.values()] for name, seeds in found.items()}
    for axes, (name, own) in zip(panels, lines.items(), strict=False):
        for line in (line for others in lines.values() for line in others):
            axes.plot(range(1, len(line) + 1), line, color="#d5dae1", linewidth=0.8)
        for line in own:
            axes.plot(range(1, len(line) + 1), line, color="#2563eb", linewidth=1.6)
        axes.set_title(name, fontsize=10, loc="left")
        axes.set_ylim(0, 1.05)
        axes.grid(True, axis="y", color="#eceff3")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[len(lines) :]:
        axes.set_axis_off()
    figure.supxlabel("step", fontsize=9)
    figure.supylabel("reward of the samples, mean of three steps", fontsize=9)
    figure.savefig(path)


def write(*, mixed: bool) -> None:
    found = results()
    if not mixed:
        refuse_mixed("the table of the algorithms", commits(found))
    DOCUMENT.write_text(filled(DOCUMENT.read_text(), table(found), BEGIN))
    draw(found, CURVES)


def main() -> None:
    parser = argparse.ArgumentParser(description="Every algorithm on the tiny recipe.")
    parser.add_argument("--only", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--seeds", type=int, nargs="+", choices=SEEDS, default=list(SEEDS))
    parser.add_argument("--table", action="store_true", help="only write what was kept into the document")
    parser.add_argument("--mixed", action="store_true", help=MIXED)
    given = parser.parse_args()
    if given.table:
        write(mixed=given.mixed)
        return
    runs = [(name, seed) for seed in given.seeds for name in given.only if seed == 0 or name in SEEDED]
    if not given.mixed:
        unmeasured = dict.fromkeys((f"{name} {seed}" for name, seed in runs), commit())
        refuse_mixed("algorithms", {**unmeasured, **commits(results())})
    for name, seed in runs:
        kept(f"algorithms/{folder_of(name)}", seed, lambda seed, name=name: run(name, seed))
    found = results()
    means = {name: fmean(one.found["after"] for one in seeds.values()) for name, seeds in found.items() if seeds}
    report("algorithms", means, dict.fromkeys(means, f">= {TARGET}"), commits(found))


if __name__ == "__main__":
    main()
