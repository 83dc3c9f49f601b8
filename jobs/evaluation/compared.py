"""Compares two evaluations of the same tasks: the difference of each task's two success rates."""

from collections import defaultdict
from collections.abc import Collection, Sequence
from pathlib import Path
from statistics import fmean

from coa.errors import UserError
from coa.json_object import Json
from coa.reporting.statistics import Estimate, paired_difference
from coa.types import Task
from jobs.evaluation.journal import Episodes

EPISODES = "episodes.parquet"
MODES = {"greedy": "greedy", "sampled": "pass_at_1"}
"""The modes of attempts, and the keys of their pass rates in results."""
Verdicts = dict[str, dict[str, list[bool]]]
"""Whether each attempt is right, by mode and task id."""


def verdicts_in(folder: Path, tasks: Sequence[Task]) -> Verdicts:
    """Those of the evaluation in a folder; raises UserError if there is none, or if it is on other tasks."""
    path = folder / EPISODES
    if not path.is_file():
        raise UserError(f"--against {folder}: no evaluation there (no {EPISODES})")
    rows = _rows(path)
    asked = {(task.id, task.question) for task in tasks}
    if {(row["task_id"], row["question"]) for row in rows} != asked:
        raise UserError(f"--against {folder}: that is an evaluation on other tasks")
    if len(asked) < 2:
        raise UserError(f"--against {folder}: a difference needs at least 2 tasks")
    return _by_task(rows)


def verdicts_of(greedy: Episodes, sampled: Episodes) -> Verdicts:
    return {
        mode: {id: [episode.correct for episode in some] for id, some in episodes.items()}
        for mode, episodes in (("greedy", greedy), ("sampled", sampled))
    }


def differences(now: Verdicts, before: Verdicts) -> dict[str, Estimate]:
    """By mode, the mean difference over tasks with its paired interval; a mode in which the evaluations did not attempt
    the same tasks is left out."""
    return {
        mode: _difference(by_task, before[mode], by_task)
        for mode, by_task in now.items()
        if by_task and by_task.keys() == before.get(mode, {}).keys()
    }


def gains(before: Path, after: Path) -> Json:
    """The differences of two evaluations of a run, by their files of episodes: `greedy` and `pass_at_1` as far as both
    were measured, for all tasks and by family; nothing if a file is gone."""
    if not (before.is_file() and after.is_file()):
        return {"families": {}}
    rows = _rows(after)
    earlier, later = _by_task(_rows(before)), _by_task(rows)
    families: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        families[row["family"]].add(row["task_id"])

    def of(ids: Collection[str]) -> dict[str, Estimate]:
        return {
            key: _difference(later[mode], earlier[mode], ids)
            for mode, key in MODES.items()
            if all(id in side.get(mode, {}) for id in ids for side in (earlier, later))
        }

    everything = set().union(*families.values())
    return {**of(sorted(everything)), "families": {name: of(sorted(ids)) for name, ids in families.items()}}


def _difference(now: dict[str, list[bool]], before: dict[str, list[bool]], ids: Collection[str]) -> Estimate:
    samples = min(len(side[id]) for side in (now, before) for id in ids)
    after, first = ([fmean(side[id]) for id in ids] for side in (now, before))
    return paired_difference(after, first, samples)


def _rows(path: Path) -> list[Json]:
    import pyarrow.parquet as pq

    return pq.read_table(path, columns=["task_id", "family", "question", "group", "correct"]).to_pylist()


def _by_task(rows: Sequence[Json]) -> Verdicts:
    found: Verdicts = {}
    for row in rows:
        found.setdefault(row["group"], {}).setdefault(row["task_id"], []).append(row["correct"])
    return found
