"""Caches of results by key: `Memo` in memory, which also merges equal calls in progress, and `DiskCache`, which
survives restarts."""

import asyncio
import logging
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from typing import TYPE_CHECKING, Generic, TypeVar

from coa.concurrency import beyond_caller

if TYPE_CHECKING:
    import diskcache

logger = logging.getLogger(__name__)

V = TypeVar("V")

WAIT_S = 2.0
"""Maximum seconds that a call waits for the disk."""
PATIENCE = 3
"""Number of consecutive calls without an answer from the disk after which it is not used for a while."""
REST_S = 60.0
"""Seconds without use of the disk after that."""
LOCK_S = 1
"""Maximum seconds that SQLite waits for another process's lock."""


class Found(Enum):
    """The source of a result."""

    NEW = "new"
    """Started by this call."""
    JOINED = "joined"
    """In progress for another caller."""
    KEPT = "kept"
    """In the cache."""


class Memo(Generic[V]):
    """Keeps the results of up to `entries` keys and drops the oldest first. Failures, and results for which `keep` is
    false, are not kept."""

    def __init__(self, entries: int, keep: Callable[[V], bool] = lambda _: True, *, abandon: bool = False) -> None:
        """abandon: whether a call in progress is cancelled once all callers that waited for it are cancelled."""
        self._entries, self._keep, self._abandon = entries, keep, abandon
        self._tasks: dict[object, asyncio.Task[V]] = {}
        self._waiting: Counter[asyncio.Task[V]] = Counter()

    def find(self, key: object) -> Found:
        task = self._tasks.get(key)
        return Found.NEW if task is None else Found.KEPT if task.done() else Found.JOINED

    async def get(self, key: object, make: Callable[[], Awaitable[V]]) -> V:
        """The cached result, that of the call in progress, or that of a new call of `make`, whose error is raised for
        all callers."""
        task = self._tasks.get(key)
        if task is None:
            task = self._tasks[key] = beyond_caller(_await(make))
            task.add_done_callback(lambda done: self._settle(key, done))
            if len(self._tasks) > self._entries:
                self._tasks.pop(next(iter(self._tasks)))
        self._waiting[task] += 1
        try:
            # A cancelled caller must not cancel the call for the other callers that wait for it.
            return await asyncio.shield(task)
        finally:
            self._waiting[task] -= 1
            if not self._waiting[task]:
                del self._waiting[task]
                if self._abandon and not task.done():
                    self._forget(key, task)
                    task.cancel()
                    await asyncio.wait([task])

    def _settle(self, key: object, done: asyncio.Task[V]) -> None:
        failed = done.cancelled() or done.exception() is not None
        if failed or not self._keep(done.result()):
            self._forget(key, done)

    def _forget(self, key: object, task: asyncio.Task[V]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]


async def _await(make: Callable[[], Awaitable[V]]) -> V:
    return await make()


class DiskCache:
    """Keeps texts by key in a folder that several processes may share; drops the least recently stored first.

    A disk failure (full, corrupt, gone, hanging) never makes a call fail: a failed `get` finds nothing, a failed `put`
    keeps nothing, each is counted in `failures`, and the first is logged. A disk that hangs is not used for a while, so
    that not every call waits for it; calls in that time count as failures too.
    """

    def __init__(self, folder: str, max_bytes: int) -> None:
        self.failures = 0
        self._folder, self._max_bytes = folder, max_bytes
        self._cache: diskcache.Cache | None = None
        self._hung = 0
        """Consecutive calls that timed out."""
        self._rest_until = 0.0
        """Time of the event loop's clock until which the disk is not used."""
        # SQLite may wait for the disk or for another process; one thread, so that one connection serves all calls.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tool-cache")

    async def get(self, key: str) -> str | None:
        data = await self._do(lambda cache: cache.get(key))
        return data.decode() if isinstance(data, bytes) else None

    async def put(self, key: str, text: str) -> None:
        await self._do(lambda cache: cache.set(key, text.encode()))

    async def close(self) -> None:
        if self._cache is not None:
            await self._do(lambda cache: cache.close())
        self._thread.shutdown(wait=False)

    async def _do(self, act: Callable[["diskcache.Cache"], V]) -> V | None:
        from diskcache import Timeout  # SQLite's, when another process holds the lock

        loop = asyncio.get_running_loop()
        if loop.time() < self._rest_until:
            self.failures += 1
            return None
        began = loop.time()
        try:
            async with asyncio.timeout(WAIT_S):
                done = await loop.run_in_executor(self._thread, self._open_and, act)
        except (OSError, sqlite3.Error, Timeout, TimeoutError, ValueError) as error:
            if not self.failures:
                logger.warning("the tools' cache in %s fails, calls go on without it: %r", self._folder, error)
            self.failures += 1
            self._hung = self._hung + 1 if loop.time() - began >= WAIT_S else 0
            if self._hung >= PATIENCE:
                self._hung, self._rest_until = 0, loop.time() + REST_S
            return None
        self._hung = 0
        return done

    def _open_and(self, act: Callable[["diskcache.Cache"], V]) -> V:
        if self._cache is None:
            self._cache = _open(self._folder, self._max_bytes)
        return act(self._cache)


def _open(folder: str, max_bytes: int) -> "diskcache.Cache":
    from diskcache import Cache, Disk
    from diskcache.core import MODE_PICKLE

    class Bytes(Disk):
        """Never unpickles: a pickle that another user wrote to the folder could run any code."""

        def fetch(self, mode: int, filename: object, value: object, read: bool) -> object:
            if mode == MODE_PICKLE:
                raise ValueError("an entry that this cache did not write")
            return super().fetch(mode, filename, value, read)

    return Cache(folder, size_limit=max_bytes, timeout=LOCK_S, disk=Bytes)
