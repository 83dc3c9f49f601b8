"""What was paid for, kept by key until nobody needs it: a process may be killed at any moment and finds it again.

put      is on disk when it returns (SQLite commits), so a kill loses at most what was on its way here
get      what was put under the key, by this process or one before it
"""

import json
import sqlite3
from pathlib import Path
from typing import Any

from diskcache import Cache

from coa.files import full, room_at


class Ledger:
    """JSON values by key, in a folder of its own. One process writes at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._cache = _guarded(folder, lambda: Cache(str(folder), eviction_policy="none", size_limit=1 << 62))

    def is_empty(self) -> bool:
        return _guarded(self._folder, lambda: len(self._cache)) == 0

    def get(self, key: str) -> Any | None:
        told = _guarded(self._folder, lambda: self._cache.get(key))
        return None if told is None else json.loads(told)

    def put(self, key: str, value: Any) -> None:
        """Raises DiskFull where there is no room; nothing is kept then."""
        text = json.dumps(value, ensure_ascii=False)
        _guarded(self._folder, lambda: self._cache.set(key, text))


def _guarded(folder: Path, act: Any) -> Any:
    try:
        with room_at(folder):
            return act()
    except sqlite3.OperationalError as error:
        if "full" in str(error):
            raise full(folder) from error
        raise
