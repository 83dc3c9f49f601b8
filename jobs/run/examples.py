"""Trajectories for the report page: per family, a task that the SFT model got wrong and the RL model right."""

from collections.abc import Mapping

from coa.agent.profiles import PROFILES
from coa.json_object import Json, JsonView
from coa.reporting.page import Example
from coa.types import Task
from jobs.evaluation.compared import MODES
from jobs.run.run_dir import RunDir


def examples(run: RunDir) -> list[Example]:
    """Both models' first sampled attempts at such a task, or their greedy ones if nothing was sampled; if there is no
    such task, at the family's first one."""
    before, after = (_first_attempts(run, name) for name in ("sft", "rl"))
    both = (("SFT", before), ("RL", after))
    return [_example(name, rows[task_id]) for task_id in telling(before, after) for name, rows in both]


def telling(before: Mapping[str, JsonView], after: Mapping[str, JsonView]) -> list[str]:
    """For each family, the first task that is wrong before and right after; if there is none, the first task."""
    turned = [name for name, row in before.items() if not row["correct"] and after[name]["correct"]]
    found: dict[str, str] = {}
    for name in (*reversed([*before]), *reversed(turned)):
        found[before[name]["family"]] = name
    return [found[family] for family in dict.fromkeys(row["family"] for row in before.values())]


def _first_attempts(run: RunDir, name: str) -> dict[str, Json]:
    import pyarrow.parquet as pq

    rows = pq.read_table(run.trajectories / f"evaluation-{name}.parquet").to_pylist()
    first = {
        mode: {row["task_id"]: row for row in rows if row["group"] == mode and row["sample"] == 0} for mode in MODES
    }
    return first["sampled"] or first["greedy"]


def _example(name: str, row: Json) -> Example:
    task = Task(
        id=row["task_id"],
        question=row["question"],
        answers=tuple(row["answers"]),
        profile=next(iter(PROFILES)),
        family=row["family"],
    )
    return Example(task=task, made_by=name, text=row["text"], correct=row["correct"])
