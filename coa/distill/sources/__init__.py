"""Imports runs of other agent systems as transcripts.

    a system's logs -> ForeignRun (recorded, smolagents, rows) -> its task (match) -> Transcript (write)

A run that cannot be written in our tags is refused with a reason; none is dropped silently.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from coa.distill.sources.computing import with_computed
from coa.distill.sources.foreign import ForeignRun, Reason, Refusal, Refused
from coa.distill.sources.match import Tasks
from coa.distill.sources.messages import kind_of
from coa.distill.sources.recorded import read_runs
from coa.distill.sources.rows import ROWS, first_of, format_of, read_conversations
from coa.distill.sources.smolagents import OAGENTS, SMOLAGENTS, read_memories
from coa.distill.sources.source import JSON, JSONL, PARQUET, files
from coa.distill.sources.tools import DEFAULTS, ToolTable, read_tools
from coa.distill.sources.write import to_transcript
from coa.errors import UserError
from coa.registry import Registry
from coa.teams.transcript import Transcript
from coa.types import Task

Reader = Callable[[Path, Tasks, ToolTable], Iterator[ForeignRun | Refusal]]

_FIELDS = {
    "recorded": [{"session", "messages", "reply"}],
    "oagents": [{"intermediate_steps"}],
    "smolagents": [{"steps"}, {"task", "task_images"}, {"model_output"}],
}
"""Fields by which the first record of a format is known."""

FORMATS: Registry[Reader] = Registry(
    "format",
    {
        "recorded": read_runs,
        **{team: lambda path, _, table, team=team: read_memories(path, table, team) for team in (SMOLAGENTS, OAGENTS)},
        **{form: lambda path, _, table, form=form: read_conversations(path, table, form) for form in ROWS},
    },
)

__all__ = ["DEFAULTS", "FORMATS", "Reason", "Refusal", "detect", "import_runs", "read_tools"]


def detect(path: Path) -> str:
    """The format of the runs in a file, or in a folder's files, by the first of them; raises UserError if it is none
    that is known."""
    file = files(path, JSON, JSONL, PARQUET)[0]
    row = first_of(file)
    names = set(row) if isinstance(row, Mapping) else set()
    for form, fields in _FIELDS.items():
        if any(names >= group for group in fields):
            return form
    if isinstance(row, Mapping) and (form := format_of(row)):
        return form
    raise UserError(f"{file}: no known format: its first row is {kind_of(row)}; --format names {', '.join(FORMATS)}")


def import_runs(
    form: str, path: Path, tasks: Iterable[Task], table: ToolTable = DEFAULTS, model: str = ""
) -> Iterator[Transcript | Refusal]:
    """Yields each run of a file or folder, or its refusal; the runs of one task are its attempts 0, 1, ...

    form: a key of FORMATS; model: the model of runs that name none. Raises UserError if the path has no such files.
    """
    known = Tasks(tasks)
    attempts: Counter[str] = Counter()
    for run in FORMATS[form](path, known, table):
        if isinstance(run, Refusal):
            yield run
            continue
        task = known.find(run.ids, run.question)
        if task is None:
            yield Refusal(run.where, Reason.NO_TASK)
            continue
        try:
            transcript = to_transcript(with_computed(run), task, attempts[task.id], table, model)
        except Refused as refused:
            yield Refusal(run.where, refused.reason, refused.detail)
        else:
            attempts[task.id] += 1
            yield transcript
