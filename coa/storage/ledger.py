"""A ledger of expensive results, by key: a process that was killed finds them again after its restart.

put      returns once the value is on disk (SQLite commits), so a kill loses at most a value that was not yet put
get      returns what was put under the key, by this process or one before it
"""

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from diskcache import Cache

from coa.storage.files import full, room_at

T = TypeVar("T")


class Ledger:
    """JSON values by key, in a folder of its own. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._cache: Any = _guarded(folder, lambda: Cache(str(folder), eviction_policy="none", size_limit=1 << 62))

    def is_empty(self) -> bool:
        return _guarded(self._folder, lambda: len(self._cache)) == 0

    def get(self, key: str) -> Any | None:
        """The value of the key; None if there is none."""
        text = _guarded(self._folder, lambda: self._cache.get(key))
        return None if text is None else json.loads(text)

    def put(self, key: str, value: object) -> None:
        """Keeps the value under the key; raises DiskFull if there is no room, and keeps nothing then."""
        text = json.dumps(value, ensure_ascii=False)
        _guarded(self._folder, lambda: self._cache.set(key, text))


def _guarded(folder: Path, act: Callable[[], T]) -> T:
    """Returns the result of `act`; raises DiskFull if SQLite, or the file system below it, has no room."""
    try:
        with room_at(folder):
            return act()
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise full(folder) from error
        raise
