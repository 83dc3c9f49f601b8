"""The effect of another layout of observations, or of an unseen tool, on a trained policy, with and without an enforced
grammar, and the effect of training on several layouts.

    python -m benchmarks.format_sensitivity

Two runs of the tiny recipe: one was trained on the plain layout only, one on plain and JSON. Both are evaluated on the
same 300 held-out tasks in three layouts, one of them unseen by both runs, and with a replacement of the encyclopedia's
tool whose tag is unseen by both. Takes about forty minutes on two cores; finished parts are kept.
"""

import json
from pathlib import Path

from benchmarks.harness import report
from benchmarks.tiny_runs import RUNS, coa, rates, train
from coa.agent.episode import Grammar
from coa.demo import World, WorldConfig, evaluation_tasks
from coa.reporting.statistics import pass_at_1
from coa.types import Task
from jobs.stages.select import row_of

FOLDER = RUNS / "format_sensitivity"
# The other layouts are longer than the plain one.
ROOM = ("agent.limits.max_observation_tokens=128", "agent.limits.max_tokens=512", "sft.learner.packing.row_tokens=512")
ROOM = (*ROOM, "sft.learner.packing.rows=3", "rl.learner.packing.row_tokens=512", "rl.learner.packing.rows=3")
MODELS = {"plain": "agent.layouts=[plain]", "varied": "agent.layouts=[plain,json]"}
LAYOUTS = ("plain", "json", "numbered")
GRAMMARS = tuple(grammar.name for grammar in Grammar)
GAZETTEER = "docs.examples.gazetteer"
"""The extension with the tool that no run has seen, and its profile."""


def write_tasks(path: Path, tasks: list[Task], profile: str | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = (row_of(task) | {"profile": profile or task.profile} for task in tasks)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def measure(model: Path, tasks: Path, out: Path, *overrides: str, extensions: str = "") -> list[list[int]]:
    """Whether each task's greedy attempt was right."""
    if not (out / "episodes.parquet").exists():
        words = ("evaluate", "--model", str(model), "--tasks", str(tasks), "--out", str(out), "evaluation.samples=1")
        coa(*words, *overrides, extensions=extensions)
    return [[int(rate)] for rate in rates(out / "episodes.parquet", "greedy").values()]


def main() -> None:
    every = evaluation_tasks(World(WorldConfig()), 300, seed=2)
    tasks = write_tasks(FOLDER / "tasks.jsonl", list(every))
    lookups = [task for task in every if task.profile == "mhqa"]
    unseen = write_tasks(FOLDER / "unseen.jsonl", lookups, "gazetteer")
    figures: dict[str, float] = {}

    def note(name: str, right: list[list[int]]) -> None:
        estimate = pass_at_1(right)
        low, high = estimate["ci95"]
        figures.update({name: estimate["mean"], f"{name}_low": low, f"{name}_high": high})

    for name, layouts in MODELS.items():
        model = train(FOLDER / name, layouts, *ROOM) / "model"
        for grammar in GRAMMARS:
            enforced = f"agent.grammar={grammar}"
            for layout in LAYOUTS:
                out = FOLDER / f"{name}-{layout}-{grammar}"
                note(f"{name}_{layout}_{grammar}", measure(model, tasks, out, f"agent.layouts=[{layout}]", enforced))
            out = FOLDER / f"{name}-unseen-{grammar}"
            right = measure(model, unseen, out, "agent.layouts=[plain]", enforced, extensions=GAZETTEER)
            note(f"{name}_unseen_tool_{grammar}", right)
    report("format_sensitivity", figures, {})


if __name__ == "__main__":
    main()
