"""Attempts that are finished, kept as they come, so that an evaluation that was broken off goes on from there.

    {"evaluation": "9f2c..."}                                           what is evaluated
    {"task": "aime24-0", "mode": "sampled", "episodes": [{..}, {..}]}   a line for each task and mode, once it is done

A last line that was cut off counts for nothing. A journal of another evaluation is begun anew.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from hashlib import sha256
from pathlib import Path
from types import TracebackType
from typing import Any

from coa.benchmarks.benchmark import Decoding
from coa.config import dump
from coa.files import write_atomically
from coa.rollout import EpisodeRecord
from coa.types import Status, Task
from jobs.recipe import Recipe

Episodes = dict[str, tuple[EpisodeRecord, ...]]
"""By task id."""
Plan = Mapping[str, Sequence[Decoding]]
"""By task id."""


class Journal:
    """Reads what a journal of the same evaluation holds, and adds to it.

    `greedy` and `sampled` are the finished attempts, of before and of now.
    """

    def __init__(self, path: Path, evaluation: str) -> None:
        self.greedy: Episodes = {}
        self.sampled: Episodes = {}
        head = json.dumps({"evaluation": evaluation}) + "\n"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        whole = [line for line in lines if line.endswith("\n")] if lines[:1] == [head] else [head]
        for line in whole[1:]:
            told = json.loads(line)
            getattr(self, told["mode"])[told["task"]] = tuple(map(_episode, told["episodes"]))
        write_atomically(path, "".join(whole))
        self._path = path
        self._file = path.open("a")

    def add(self, task_id: str, episodes: tuple[EpisodeRecord, ...], *, greedy: bool) -> None:
        mode = "greedy" if greedy else "sampled"
        getattr(self, mode)[task_id] = episodes
        self._file.write(json.dumps({"task": task_id, "mode": mode, "episodes": list(map(asdict, episodes))}) + "\n")
        self._file.flush()

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """What the journal was for is written once nothing was raised: it goes."""
        self._file.close()
        if error is None:
            self._path.unlink()


def _episode(told: Mapping[str, Any]) -> EpisodeRecord:
    status, forgiven, tool_calls = Status(told["status"]), tuple(told["forgiven"]), tuple(told["tool_calls"])
    return EpisodeRecord(**{**told, "status": status, "forgiven": forgiven, "tool_calls": tool_calls})


def evaluation_of(model: Path, tasks: Sequence[Task], plan: Plan, config: Recipe) -> str:
    """A digest: the same for the same files of a model, tasks, plan and settings, wherever and with how much patience
    it is evaluated."""
    default = Recipe()
    settings = replace(
        config,
        run_dir=default.run_dir,
        session=default.session,
        placement=default.placement,
        executor=default.executor,
        teaching=default.teaching,
        distill=default.distill,
        evaluation=replace(config.evaluation, patience_s=default.evaluation.patience_s),
        selection=default.selection,
    )
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(model.iterdir())]
    every = (str(model.resolve()), files, [(task, *plan[task.id]) for task in tasks], dump(settings))
    return sha256(repr(every).encode()).hexdigest()
