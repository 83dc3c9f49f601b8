"""The books of a distillation: every run that ended, in a shard; what the filter kept of it, in a shard beside it.

    teachers/transcripts-00000.parquet     all runs of a shard, as they were said, graded
    data/train-00000.parquet               what was kept of them; in its metadata, what became of the others
    teachers/failed.jsonl                  runs that infrastructure ended for good, with their reason

A shard of transcripts is written before its runs are filtered, and a shard of data after: whatever a kill leaves
between the two is filtered when the books are opened again. So each run is in the books once, or not at all.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from coa.data.rows import Decision, Demonstration, demonstration_of
from coa.data.shards import REPORT, metadata_of, read_rows_of, shard_path, write_shard
from coa.distill.filters import Filter, FilterReport, Kept, compared_answer, interactions
from coa.files import write_atomically
from coa.teachers.run import FailedRun
from coa.teachers.store import names_in, read_transcripts, write_transcripts
from coa.teachers.teams import Rules
from coa.teachers.transcript import Graded
from coa.usage import Usage

Revise = Callable[[list[Kept]], Awaitable[list[Kept]]]
Name = tuple[str, int]
"""Task id and attempt: what a run is known by."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A line of failed.jsonl."""

    task_id: str
    attempt: int
    where: str
    why: str
    usage: Usage = field(default_factory=Usage)


class Books:
    def __init__(self, teachers: Path, data: Path, filter: Filter, *, revise: Revise) -> None:
        """filter: has taken nothing before; revise: what is done to the kept before they are written."""
        self._teachers, self._data, self._filter = teachers, data, filter
        self._revise = revise
        self.report = FilterReport()
        self.names: set[Name] = set()
        """Of every run in the books."""
        self.seconds = 0.0
        """That the shards of before took."""
        self.failed = {(one.task_id, one.attempt): one for one in _read_failed(self._failed_path)}
        self.usage = sum((one.usage for one in self.failed.values()), Usage())
        """Of every run in the books and of those that failed."""
        self._shards = 0

    async def open(self) -> None:
        """Takes in what is there, and filters what was not filtered yet."""
        while self._transcripts(self._shards).exists():
            await self._open(self._shards)
            self._shards += 1

    @property
    def _failed_path(self) -> Path:
        return self._teachers / "failed.jsonl"

    def _transcripts(self, index: int) -> Path:
        return self._teachers / f"transcripts-{index:05}.parquet"

    async def _open(self, index: int) -> None:
        names, usage = names_in(self._transcripts(index))
        self.names.update(names)
        self.usage += usage
        path = shard_path(self._data, index)
        if not path.exists():
            await self._filter_shard(index, read_transcripts(self._transcripts(index)))
            return
        told = json.loads(metadata_of(path)[REPORT])
        self.report += FilterReport.from_json(told)
        self.seconds = told["seconds"]
        for row in read_rows_of(path):
            answer = compared_answer(row.task.answers, row.chain)
            self._filter.remember(row.task.id, row.task.question, answer, row.text)

    async def add(self, runs: Sequence[Graded], seconds: float) -> None:
        """A shard of runs; `seconds` is what the stage took so far."""
        self.seconds = seconds
        write_transcripts(self._transcripts(self._shards), runs)
        self.names.update((run.transcript.task.id, run.transcript.attempt) for run in runs)
        self.usage = sum((run.usage for run in runs), self.usage)
        await self._filter_shard(self._shards, runs)
        self._shards += 1

    def give_up(self, failed: FailedRun) -> None:
        """Lists a run that failed to the last try."""
        task, attempt = failed.assignment.task, failed.assignment.attempt
        self.failed[task.id, attempt] = one = GivenUp(task.id, attempt, failed.where, failed.why, failed.usage)
        self.usage += one.usage
        with self._failed_path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(_plain(one)) + "\n")

    def forgive(self) -> None:
        """What failed may be tried again. What it took is counted when it ends again, since the ledgers tell a run that
        is played again of all that it was told and that its requests took."""
        self.usage -= sum((one.usage for one in self.failed.values()), Usage())
        self.failed.clear()
        self._failed_path.unlink(missing_ok=True)

    async def _filter_shard(self, index: int, runs: Iterable[Graded]) -> None:
        kept, report = self._filter.take(runs)
        kept = await self._revise(kept)
        rows = [_row(run) for run in kept]
        write_shard(self._data, index, rows, {**report.to_json(), "seconds": self.seconds})
        self.report += report


def _row(kept: Kept) -> Demonstration:
    team = kept.transcript.team
    reflects = any(span.tag == "reflection" for span in kept.chain)
    decisions = (
        Decision("complexity", f"{interactions(kept.transcript)} interactions"),
        Decision("reflection", "reflects" if reflects else "drawn for the share without"),
        Decision("correction", f"{kept.copies} copies"),
    )
    source = "team" if team in set(Rules) else f"import:{team}"
    return demonstration_of(kept, source=source, decisions=decisions)


def _plain(one: GivenUp) -> dict[str, Any]:
    told = {"task_id": one.task_id, "attempt": one.attempt, "where": one.where, "why": one.why}
    return {**told, "usage": astuple(one.usage)}


def _read_failed(path: Path) -> list[GivenUp]:
    """A line that a kill cut off is as if it had not been written, and is taken away: another one follows."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    if lines and not lines[-1].endswith("\n"):
        write_atomically(path, "".join(lines := lines[:-1]))
    told = map(json.loads, lines)
    return [GivenUp(**{**one, "usage": Usage(*one.get("usage", ()))}) for one in told]
