"""The stage's ledger: a line for each event of an attempt, in `ledger.jsonl`. `coa.learning.accounts` says what the
lines mean and whether they balance."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from coa.agent.records import GroupRecord
from coa.errors import EpisodeFailed
from coa.learning.accounts import SPARE
from coa.learning.task_stream import Cursor
from coa.learning.window import Ticket
from coa.storage.files import sync
from coa.storage.jsonl import append_line

FILE = "ledger.jsonl"


class AttemptLedger:
    """Each line is in the file when the method returns, so that it survives a crash of the driver. The lines before a
    batch are on disk before the batch is handed out, so that they survive a crash of the machine."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE

    def start(self, start: int, version: int, cursor: int | Cursor) -> None:
        """The learners begin at `version`, for the first time or again, with the cursor of their checkpoint."""
        self._write("start", start=start, version=version, cursor=cursor)

    def issue(self, ticket: Ticket, index: int) -> None:
        self._write("issue", group=ticket.group, task=index, version=ticket.version)

    def play(self, group: GroupRecord) -> None:
        """The group was played, and waits for its batch."""
        self._write("play", group=group.group, **size(group))

    def drop(self, group: GroupRecord, reason: str) -> None:
        """Nothing can be learnt from the group."""
        self._write("drop", group=group.group, reason=reason.replace(" ", "_"), again=False, **size(group))

    def fail(self, ticket: Ticket, failure: EpisodeFailed, *, again: bool) -> None:
        """The group failed; `again`: its task will be issued again."""
        sizes = {"tokens": failure.tokens, "calls": failure.tool_calls}
        self._write("drop", group=ticket.group, reason=failure.where, again=again, **sizes)

    def stop(self, group: int) -> None:
        """The group's batch did not need it; its task is issued again."""
        self._write("drop", group=group, reason=SPARE, again=True)

    def lease(self, version: int, groups: Sequence[int]) -> None:
        """The groups are in the batch that is trained at `version`; no line before this one can be lost any more."""
        self._write("lease", version=version, groups=list(groups))
        sync(self._path)

    def finish(self, version: int) -> None:
        """The stage is over, and its last checkpoint is kept."""
        self._write("finish", version=version)
        sync(self._path)

    def _write(self, what: str, **values: Any) -> None:
        append_line(self._path, {"what": what, **values})


def size(group: GroupRecord) -> dict[str, int]:
    """Tokens of the group's longest episode, and its maximum number of tool calls in one episode."""
    return {
        "tokens": max(episode.tokens for episode in group.episodes),
        "calls": max(len(episode.tool_calls) for episode in group.episodes),
    }
