"""Query selection: chooses the tasks of a file or benchmark that RL can learn from (`coa.tasks.selection`).

    tasks -> without tasks of SFT -> attempts on the engine pool -> tasks.jsonl, dropped.jsonl, selection.json

`coa select --model DIR --tasks FILE --mode direct` asks a model without tools, `--mode tuned` the fine-tuned agent with
each task's own profile. A new run trains on the kept tasks: `coa train --recipe R
sft.data=[OLD/data] tasks.path=OUT/tasks.jsonl`.
Attempts that are finished survive an interruption; a tool or a judge that is down ends the job.
"""

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from statistics import fmean

from cluster.pool import Evaluator
from coa.json_object import Json, JsonView
from coa.reporting.readable import DASH
from coa.storage.files import write_atomically
from coa.storage.jsonl import to_json, write_lines
from coa.tasks.loading import load, row_of
from coa.tasks.selection import Attempts, Learnt, Mode, Selection, SelectionConfig, as_attempted, is_learnt, select
from coa.types import Status, Task
from jobs.evaluation.attempts import attempt_all, write_evaluation
from jobs.evaluation.journal import Episodes, Journal, evaluation_of
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import as_trained
from jobs.run.console import Console
from jobs.run.run_dir import RunDir

TASKS, DROPPED, RESULT = "tasks.jsonl", "dropped.jsonl", "selection.json"
MANY_UNANSWERED = 0.5
"""Share of attempts without an answer at which the user is warned."""


@dataclass(frozen=True, slots=True)
class Work:
    """The tasks to select from, and how they are attempted."""

    model: Path
    spec: str
    """The argument --tasks."""
    tasks: tuple[Task, ...]
    learnt: Learnt
    mode: Mode
    config: SelectionConfig

    def to_attempt(self) -> list[Task]:
        """The tasks to attempt, with the profile under which they are attempted."""
        fresh = (task for task in self.tasks if not is_learnt(task, self.config, self.learnt))
        return [as_attempted(task, self.config, self.mode) for task in fresh]


def work_of(config: Recipe, *, model: Path, tasks: str, mode: str, rows: int | None) -> Work:
    loaded = load(tasks, profile=config.tasks.profile, grader=config.tasks.grader, rows=rows)
    learnt = learnt_of(config.selection.sft, config.tasks.profile)
    return Work(model, tasks, loaded, learnt, Mode(mode), config.selection)


def learnt_of(spec: str | None, profile: str) -> Learnt:
    """The tasks in a folder of distilled data, a run's folder, a file or a benchmark; none if `spec` is None."""
    if spec is None:
        return Learnt()
    from coa.distill.dataset.shards import read_rows, shard_paths

    for folder in (Path(spec), Path(spec) / "data"):
        if shard_paths(folder):
            return Learnt.of(row.task for row in read_rows(folder))
    return Learnt.of(load(spec, profile=profile))


def settings_of(config: Recipe, work: Work, out: Path, overrides: Sequence[str]) -> Recipe:
    """The recipe under which the attempts are made."""
    config = as_trained(config, work.model, out, overrides)
    if work.mode is Mode.DIRECT:
        # No model is trained with this profile, so the prompt has to explain its tags.
        return replace(config, agent=replace(config.agent, instructed=True))
    return config


async def select_with(pool: Evaluator, work: Work, run: RunDir) -> Selection:
    """Attempts the tasks, then writes and shows which are kept."""
    began = time.monotonic()
    attempted = work.to_attempt()
    how = work.config.decoding(work.mode)
    plan = {task.id: (how,) for task in attempted}
    evaluation = evaluation_of(work.model, attempted, plan, run.config)
    with Journal(run.folder / "attempts.jsonl", evaluation) as journal:
        if journal.notice:
            run.console.say(journal.notice)
        if before := len(journal.sampled):
            run.console.say(f"{before} of {len(attempted)} tasks were attempted already, see {run.folder}")
        with run.console.stage("select", len(attempted)) as stage:
            _, episodes = await attempt_all(pool, attempted, plan, stage, journal)
        attempts = {
            name: Attempts(sum(episode.correct for episode in some), len(some)) for name, some in episodes.items()
        }
        selection = select(work.tasks, attempts, work.config, work.mode, work.learnt)
        found = summary_of(work, selection, attempts, episodes) | {
            "resumed": before,
            "seconds": round(time.monotonic() - began, 1),
        }
        write_lines(run.folder / TASKS, map(row_of, selection.kept))
        write_lines(run.folder / DROPPED, dropped_rows(selection, attempts))
        write_atomically(run.folder / RESULT, to_json(found, indent=2))
        write_evaluation(run.folder / "episodes.parquet", attempted, {}, episodes)
    show(run.console, found, run.folder)
    return selection


def dropped_rows(selection: Selection, attempts: Mapping[str, Attempts]) -> Iterable[Json]:
    """A row for each dropped task; its rate is None if the task was not attempted."""
    for task, reason in selection.dropped:
        yield {"id": task.id, "rate": attempts[task.id].rate if task.id in attempts else None, "reason": reason}


def summary_of(work: Work, selection: Selection, attempts: Mapping[str, Attempts], episodes: Episodes) -> Json:
    """Counts and pass rates of all tasks and of each family, and the number of tasks by number of right attempts."""
    statuses = Counter(episode.status for episode in chain(*episodes.values()))

    def part(family: str | None) -> Json:
        some = [attempts[task.id].rate for task in work.tasks if family in (None, task.family) and task.id in attempts]
        return {**selection.counts(family), "rate": fmean(some) if some else None}

    return {
        "tasks": work.spec,
        "model": str(work.model),
        "mode": work.mode.value,
        "settings": asdict(work.config),
        "counts": part(None),
        "families": {family: part(family) for family in sorted({task.family for task in work.tasks})},
        "tasks_by_right_attempts": dict(sorted(Counter(one.right for one in attempts.values()).items())),
        "statuses": {status.value: n for status, n in statuses.items()},
        "unanswered": 1 - statuses[Status.ANSWERED] / statuses.total(),
    }


def show(console: Console, found: JsonView, folder: Path) -> None:
    everything, families = found["counts"], found["families"]
    reasons = list(everything["dropped"])
    rows = [("all", everything), *(families.items() if len(families) > 1 else ())]
    console.table(
        f"{found['model']} on {found['tasks']}, {found['mode']}",
        ["", "tasks", "kept", *reasons, "pass rate"],
        [
            [
                name,
                part["tasks"],
                part["kept"],
                *(part["dropped"].get(reason, 0) for reason in reasons),
                DASH if part["rate"] is None else part["rate"],
            ]
            for name, part in rows
        ],
    )
    if found["unanswered"] >= MANY_UNANSWERED:
        console.say(
            f"{found['unanswered']:.0%} of the attempts gave no answer: their rates measure form or length rather than "
            "difficulty (agent.grammar=enforce allows only correct tags, agent.limits sets the maximum lengths)"
        )
    if not everything["kept"]:
        console.say("no task is kept: there is nothing to train on")
    console.say(f"kept tasks: {folder / TASKS}")
