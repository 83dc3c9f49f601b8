"""Responses that a client may request again or continue: a SQLite database, bounded by number and by bytes.

A database in a file outlives the server. Responses that were being made when the server ended are found as failed.
"""

import json
import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coa.errors import UserError
from coa.json_object import Json
from coa.serving.faults import ApiError

TABLE = """
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY, owner TEXT NOT NULL, id TEXT NOT NULL, response TEXT NOT NULL,
    conversation TEXT NOT NULL, running INTEGER NOT NULL, size INTEGER NOT NULL, UNIQUE (owner, id)
)"""


@dataclass(frozen=True, slots=True)
class StoreConfig:
    """Responses that clients may request again or continue; the oldest are dropped first."""

    path: Path | None = None
    """File of the responses, as the nodes of replicas see it; null keeps them in memory, until the server ends. `coa
    serve` keeps them in its folder, unless this names another file."""
    entries: int = 10_000
    """Maximum number of stored responses; 0 stores none."""
    gib: float = 0.25
    """Maximum size of the stored responses, in GiB."""


@dataclass(frozen=True, slots=True)
class Stored:
    response: Json
    conversation: tuple[Json, ...]
    """The input messages that led to the response, including those of the responses before it."""


class ResponseStore:
    """Responses by owner and id; the responses of one key are invisible to other keys."""

    def __init__(self, config: StoreConfig) -> None:
        """Raises UserError if the file is not one of ours, or can't be written to."""
        self._entries, self._bytes = config.entries, int(config.gib * 2**30)
        try:
            self._rows = _opened(config.path)
        except sqlite3.Error as error:
            raise UserError(f"serving.store.path={config.path}: {error}") from error
        self._count = self._used = 0
        self._count_rows()

    def put(self, owner: str, stored: Stored, *, running: bool = False) -> None:
        """Stores a response, unless it is larger than the whole store. running: whether it is still being made."""
        response, conversation = json.dumps(stored.response), json.dumps(stored.conversation)
        id, size = stored.response["id"], len(response) + len(conversation)
        try:
            self._put(owner, id, (response, conversation, running, size))
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):  # what was undone is not counted
                self._count_rows()
            raise ApiError(503, "storage", f"the response can't be stored: {error}", retry_after_s=1.0) from error

    def _put(self, owner: str, id: str, values: tuple[str, str, bool, int]) -> None:
        size = values[-1]
        with self._rows:
            self._delete(owner, id)
            self._rows.execute(
                "INSERT INTO responses (owner, id, response, conversation, running, size) VALUES (?, ?, ?, ?, ?, ?)",
                (owner, id, *values),
            )
            self._count, self._used = self._count + 1, self._used + size
            while self._count > self._entries or self._used > self._bytes:
                if (oldest := self._row("SELECT owner, id FROM responses ORDER BY number LIMIT 1", ())) is None:
                    break
                self._delete(*oldest)

    def _count_rows(self) -> None:
        self._count, self._used = self._row("SELECT COUNT(*), COALESCE(SUM(size), 0) FROM responses", ())

    def get(self, owner: str, id: str) -> Stored | None:
        row = self._row("SELECT response, conversation FROM responses WHERE owner = ? AND id = ?", (owner, id))
        return Stored(json.loads(row[0]), tuple(json.loads(row[1]))) if row else None

    def delete(self, owner: str, id: str) -> bool:
        """Returns whether there was one."""
        with self._rows:
            return self._delete(owner, id)

    def running(self) -> list[tuple[str, Stored]]:
        """Owner and response of those that were being made when they were stored last."""
        with closing(self._rows.execute("SELECT owner, response, conversation FROM responses WHERE running")) as rows:
            return [(owner, Stored(json.loads(one), tuple(json.loads(said)))) for owner, one, said in rows]

    def close(self) -> None:
        self._rows.close()

    def _delete(self, owner: str, id: str) -> bool:
        row = self._row("DELETE FROM responses WHERE owner = ? AND id = ? RETURNING size", (owner, id))
        if row:
            self._count, self._used = self._count - 1, self._used - row[0]
        return row is not None

    def _row(self, query: str, values: tuple[str, ...]) -> Any:
        with closing(self._rows.execute(query, values)) as rows:
            return next(iter(rows.fetchall()), None)


def _opened(path: Path | None) -> sqlite3.Connection:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
    # Whose store it is uses it in one event loop, which need not be that of the thread that made it.
    rows = sqlite3.connect(":memory:" if path is None else path, check_same_thread=False)
    # Each response is on disk once it is stored, without a wait for the disk: a power cut may lose the last ones.
    rows.execute("PRAGMA journal_mode = WAL")
    rows.execute("PRAGMA synchronous = NORMAL")
    rows.execute(TABLE)
    return rows
