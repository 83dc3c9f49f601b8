"""Compares an evaluation with another one of the same tasks: the difference of each task's two success rates."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from coa.errors import UserError
from coa.reporting.statistics import paired_difference
from coa.types import Task
from jobs.run.journal import Episodes

EPISODES = "episodes.parquet"
Rates = dict[str, dict[str, float]]
"""The share of right attempts, by mode (greedy or sampled) and task id."""


def rates_in(folder: Path, tasks: Sequence[Task]) -> Rates:
    """The rates of the evaluation in a folder; raises UserError if there is none, or if it is on other tasks."""
    import pyarrow.parquet as pq

    path = folder / EPISODES
    if not path.is_file():
        raise UserError(f"--against {folder}: no evaluation there (no {EPISODES})")
    rows = pq.read_table(path, columns=["task_id", "question", "group", "correct"]).to_pylist()
    asked = {(task.id, task.question) for task in tasks}
    if {(row["task_id"], row["question"]) for row in rows} != asked:
        raise UserError(f"--against {folder}: that is an evaluation on other tasks")
    if len(asked) < 2:
        raise UserError(f"--against {folder}: a difference needs at least 2 tasks")
    found: dict[str, dict[str, list[bool]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        found[row["group"]][row["task_id"]].append(row["correct"])
    return {mode: {id: fmean(rights) for id, rights in by_task.items()} for mode, by_task in found.items()}


def rates_of(greedy: Episodes, sampled: Episodes) -> Rates:
    return {
        mode: {id: fmean(episode.correct for episode in some) for id, some in episodes.items()}
        for mode, episodes in (("greedy", greedy), ("sampled", sampled))
    }


def differences(now: Rates, before: Rates) -> dict[str, Any]:
    """By mode, the mean difference over tasks with its paired interval; a mode in which the evaluations did not attempt
    the same tasks is left out."""
    return {
        mode: paired_difference(list(rates.values()), [before[mode][id] for id in rates])
        for mode, rates in now.items()
        if rates and rates.keys() == before.get(mode, {}).keys()
    }
