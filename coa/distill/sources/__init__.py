"""Imports runs of other agent systems as transcripts.

    a system's logs -> ForeignRun (recorded, smolagents) -> its task (match) -> Transcript (write)

A run that cannot be written in our tags is refused with a reason; none is dropped silently.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from coa.distill.sources.computing import with_computed
from coa.distill.sources.foreign import ForeignRun, Reason, Refusal, Refused
from coa.distill.sources.match import Tasks
from coa.distill.sources.recorded import read_runs
from coa.distill.sources.smolagents import read_oagents, read_smolagents
from coa.distill.sources.tools import DEFAULTS, ToolTable, read_tools
from coa.distill.sources.write import to_transcript
from coa.registry import Registry
from coa.teams.transcript import Transcript
from coa.types import Task

Reader = Callable[[Path, Tasks, ToolTable], Iterator[ForeignRun | Refusal]]

FORMATS: Registry[Reader] = Registry(
    "format",
    {
        "recorded": read_runs,
        "smolagents": lambda path, _, table: read_smolagents(path, table),
        "oagents": lambda path, _, table: read_oagents(path, table),
    },
)

__all__ = ["DEFAULTS", "FORMATS", "Reason", "Refusal", "import_runs", "read_tools"]


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
