"""Counts what the recorder records, and says once of each kind what it does not."""

import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from coa.distill.sources.messages import without_changing
from coa.distill.sources.recorder.protocols import PROTOCOLS
from coa.distill.sources.recorder.records import Record

RECORDED = ", ".join(f"/v1/{path}" for path in PROTOCOLS)
_ID = re.compile(r"[A-Za-z]++[_-](?=[^\d/]*+\d)[^/]*+|\d++")
"""A part of a path that names one object, such as `resp_68f3`."""


class Tally:
    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._calls = 0
        self._failures: Counter[str] = Counter()
        self._others: Counter[str] = Counter()
        self.without_room = 0
        """Calls that were not recorded, because the disk was full."""

    def recorded(self, record: Record) -> None:
        self._calls += 1
        if record.failure:
            kind = without_changing(record.failure)
            if record.status == 200 and not self._failures[kind]:
                self._say(f"a call of session {record.session} is recorded as failed: {record.failure}")
            self._failures[kind] += 1

    def passed_on(self, path: str) -> None:
        """Counts a request that is only forwarded."""
        name = "POST /v1/" + "/".join("ID" if _ID.fullmatch(part) else part for part in path.split("/"))
        self._count(name, f"is forwarded, and not recorded; recorded are {RECORDED}")

    def count_unknown(self, method: str, path: str) -> None:
        """Counts a request for a path that the recorder does not have."""
        base = "an agent's base URL ends in /v1, as in /session/NAME/v1"
        self._count(f"{method} {path}", f"is refused, and not recorded: {base}")

    def _count(self, name: str, what: str) -> None:
        if not self._others[name]:
            self._say(f"{name} {what}")
        self._others[name] += 1

    def close(self, folder: Path) -> None:
        """Says what was recorded, and what was not."""
        failed = sum(self._failures.values())
        calls = f"{self._calls} call{'s' * (self._calls != 1)}{f', {failed} of them failed' if failed else ''}"
        others = [f"{count} x {name}" for name, count in self._others.items()]
        others += [f"{self.without_room} x for lack of space"] if self.without_room else []
        left_out = f"; not recorded: {', '.join(others)}" if others else ""
        self._say(f"recorded {calls}, in {folder}{left_out}")
