"""The journal of an evaluation: finished attempts, written as they come, so that an interrupted evaluation resumes.

    {"evaluation": "9f2c..."}                                           what is evaluated
    {"task": "aime24-0", "mode": "sampled", "episodes": [{..}, {..}]}   a line for each task and mode, once it is done

A journal of another evaluation is overwritten.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from types import TracebackType

from coa.agent.records import EpisodeRecord
from coa.json_object import JsonView
from coa.storage.jsonl import append_line, read_lines, write_lines
from coa.tasks.published.benchmark import Decoding
from coa.types import Status, Task
from jobs.recipe.resume import fixed_settings
from jobs.recipe.schema import Recipe

Episodes = dict[str, tuple[EpisodeRecord, ...]]
"""Finished attempts by task id."""
Plan = Mapping[str, Sequence[Decoding]]
"""How to attempt each task, by its id."""


class Journal:
    """Reads the journal of the same evaluation, if there is one, and adds to it.

    `greedy` and `sampled` are the finished attempts, those of an interrupted evaluation included. `discarded` is the
    number of attempts of another evaluation that the file held: they are overwritten.
    """

    def __init__(self, path: Path, evaluation: str) -> None:
        self.greedy: Episodes = {}
        self.sampled: Episodes = {}
        head = {"evaluation": evaluation}
        lines = read_lines(path)
        self.discarded = 0
        if lines[:1] != [head]:
            self.discarded = len(lines[1:])
            write_lines(path, lines := [head])
        for line in lines[1:]:
            getattr(self, line["mode"])[line["task"]] = tuple(map(_episode, line["episodes"]))
        self._path = path

    @property
    def notice(self) -> str:
        """One line if attempts of another evaluation were overwritten; else empty."""
        if not self.discarded:
            return ""
        return f"{self._path}: {self.discarded} attempts of another model, other tasks or other settings are discarded"

    def add(self, task_id: str, episodes: tuple[EpisodeRecord, ...], *, greedy: bool) -> None:
        mode = "greedy" if greedy else "sampled"
        getattr(self, mode)[task_id] = episodes
        append_line(self._path, {"task": task_id, "mode": mode, "episodes": list(map(asdict, episodes))})

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Removes the file if nothing was raised, since the results are written then."""
        if error is None:
            self._path.unlink()


def _episode(fields: JsonView) -> EpisodeRecord:
    status, repairs, tool_calls = Status(fields["status"]), tuple(fields["repairs"]), tuple(fields["tool_calls"])
    return EpisodeRecord(**{**fields, "status": status, "repairs": repairs, "tool_calls": tool_calls})


def evaluation_of(model: Path, tasks: Sequence[Task], plan: Plan, config: Recipe) -> str:
    """A digest of the model's files, the tasks, the plan and the settings that may not change when a run is resumed."""
    settings = {key: value for key, value in fixed_settings(config).items() if not key.startswith("distill.")}
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(model.iterdir())]
    every = (str(model.resolve()), files, [(task, *plan[task.id]) for task in tasks], settings)
    return sha256(repr(every).encode()).hexdigest()
