"""The store of a distillation: shards of all runs that ended, and beside them shards of what the filter kept.

    teachers/transcripts-00000.parquet     all runs of a shard, graded
    data/train-00000.parquet               the runs that were kept; the filter's report is in its metadata
    teachers/dropped-00000.jsonl           the runs of a shard that were dropped, with their reason
    teachers/failed.jsonl                  runs that infrastructure failures ended for good, with their reason

A shard of transcripts is written before its runs are filtered, and a shard of data after. If a kill comes between the
two, the runs are filtered when the store is opened again. So each run is in the store once, or not at all.
"""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

from coa.distill.dataset.rows import NO_COLUMNS, Decision, Demonstration, OwnColumns, demonstration_of
from coa.distill.dataset.shards import REPORT, metadata_of, read_rows_of, shard_path, write_shard
from coa.distill.drop_report import Dropped, FilterReport
from coa.distill.filters import Filter, Kept, compared_answer
from coa.distill.stages import interactions
from coa.json_object import Json
from coa.storage.jsonl import append_line, read_lines, write_lines
from coa.teams.kinds import KINDS
from coa.teams.run import FailedRun
from coa.teams.store import names_in, read_transcripts, write_transcripts
from coa.teams.transcript import Graded
from coa.usage import Usage

Revise = Callable[[list[Kept]], Awaitable[list[Kept]]]
Name = tuple[str, int]
"""Name of a run: its task's id and attempt."""


@dataclass(frozen=True, slots=True)
class GivenUp:
    """A line of failed.jsonl."""

    task_id: str
    attempt: int
    where: str
    why: str
    usage: Usage = field(default_factory=Usage)


class DistillStore:
    """Keeps the runs of a distillation, and filters them shard by shard."""

    def __init__(
        self, teachers: Path, data: Path, filter: Filter, *, revise: Revise, own: OwnColumns = NO_COLUMNS
    ) -> None:
        """filter: must be new; revise: rewrites kept runs before they are written; own: the extra columns of their
        world."""
        self._teachers, self._data, self._filter, self._own = teachers, data, filter, own
        self._revise = revise
        self.report = FilterReport()
        self.names: set[Name] = set()
        """Names of all runs in the store."""
        self.seconds = 0.0
        """Seconds that the stage took up to the last shard."""
        self.failed = {(one.task_id, one.attempt): one for one in _read_failed(self._failed_path)}
        self.usage = sum((one.usage for one in self.failed.values()), Usage())
        """Usage of all runs in the store and of those that failed."""
        self._shards = 0

    async def open(self) -> None:
        """Reads the existing shards, and filters those that were not filtered yet."""
        while self._transcripts(self._shards).exists():
            await self._open(self._shards)
            self._shards += 1

    @property
    def _failed_path(self) -> Path:
        return self._teachers / "failed.jsonl"

    def _transcripts(self, index: int) -> Path:
        return self._teachers / f"transcripts-{index:05}.parquet"

    def _dropped(self, index: int) -> Path:
        return self._teachers / f"dropped-{index:05}.jsonl"

    def dropped(self) -> Iterator[Dropped]:
        """The runs that were dropped, in the order of their shards."""
        for index in range(self._shards):
            yield from (Dropped(**line) for line in read_lines(self._dropped(index)))

    async def _open(self, index: int) -> None:
        names, usage = names_in(self._transcripts(index))
        self.names.update(names)
        self.usage += usage
        path = shard_path(self._data, index)
        if not path.exists():
            await self._filter_shard(index, read_transcripts(self._transcripts(index)))
            return
        report = json.loads(metadata_of(path)[REPORT])
        self.report += FilterReport.from_json(report)
        self.seconds = report["seconds"]
        for row in read_rows_of(path):
            answer = compared_answer(row.task.answers, row.chain)
            self._filter.remember(row.task.id, row.task.question, answer, row.text)

    async def add(self, runs: Sequence[Graded], seconds: float) -> None:
        """Writes a shard of runs and filters it. seconds: what the stage took so far."""
        self.seconds = seconds
        write_transcripts(self._transcripts(self._shards), runs)
        self.names.update((run.transcript.task.id, run.transcript.attempt) for run in runs)
        self.usage = sum((run.usage for run in runs), self.usage)
        await self._filter_shard(self._shards, runs)
        self._shards += 1

    def give_up(self, failed: FailedRun) -> None:
        """Records a run that failed at its last try."""
        task, attempt = failed.assignment.task, failed.assignment.attempt
        self.failed[task.id, attempt] = one = GivenUp(task.id, attempt, failed.where, failed.why, failed.usage)
        self.usage += one.usage
        append_line(self._failed_path, _plain(one))

    def retry_failed(self) -> None:
        """Forgets failed runs, so that they are tried again. Their usage is counted when they end, since a run that is
        replayed gets the usage of its earlier requests from the ledgers."""
        self.usage -= sum((one.usage for one in self.failed.values()), Usage())
        self.failed.clear()
        self._failed_path.unlink(missing_ok=True)

    async def _filter_shard(self, index: int, runs: Iterable[Graded]) -> None:
        kept, report = self._filter.take(runs)
        write_lines(self._dropped(index), map(asdict, self._filter.dropped))
        kept = await self._revise(kept)
        rows = [_row(run) for run in kept]
        write_shard(self._data, index, rows, {**report.to_json(), "seconds": self.seconds}, self._own)
        self.report += report


def _row(kept: Kept) -> Demonstration:
    team = kept.transcript.team
    reflects = any(span.tag == "reflection" for span in kept.chain)
    decisions = (
        *([Decision("lines", f"line {kept.transcript.winner}, which agreed")] if kept.further else []),
        Decision("complexity", f"{interactions(kept.transcript)} interactions"),
        Decision("reflection", "reflects" if reflects else "drawn for the share without"),
        Decision("correction", f"{kept.copies} copies"),
    )
    source = "team" if team in KINDS else f"import:{team}"
    return demonstration_of(kept, source=source, decisions=decisions)


def _plain(one: GivenUp) -> Json:
    line = {"task_id": one.task_id, "attempt": one.attempt, "where": one.where, "why": one.why}
    return {**line, "usage": astuple(one.usage)}


def _read_failed(path: Path) -> list[GivenUp]:
    return [GivenUp(**{**line, "usage": Usage(*line.get("usage", ()))}) for line in read_lines(path)]
