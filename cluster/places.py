"""The queue of episodes that wait for a place on an engine.

Older groups come first, and within a group earlier arrivals. An evaluation's episode comes after all groups that were
there before it, and before all groups that come later.
"""

import asyncio
import itertools
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Generic, TypeVar

from actors.messages import EVALUATION

T = TypeVar("T")
Priority = tuple[int, int]
"""Position of a waiting episode: smaller is earlier; priorities are unique."""


class Priorities:
    """Assigns priorities to episodes. An episode that has to wait again keeps its priority."""

    def __init__(self) -> None:
        self._newest = 0
        self._arrivals = itertools.count()

    def of(self, group: int) -> Priority:
        if group == EVALUATION:
            group = self._newest
        self._newest = max(self._newest, group)
        return group, next(self._arrivals)


class Queue(Generic[T]):
    """Hands out free resources to waiters, one at a time in the order of their priorities."""

    def __init__(self, free: Callable[[], T | None]) -> None:
        """free: returns a free resource or None. Its exceptions propagate to the waiter. Called for the head of the
        queue only."""
        self._free = free
        self._waiting: list[Priority] = []
        self._woken: dict[Priority, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def wake(self) -> None:
        """Makes the head of the queue check again whether a resource is free."""
        if self._waiting:
            self._woken[self._waiting[0]].set()

    async def take(self, priority: Priority) -> T:
        """Waits for all earlier priorities and for a free resource. The caller must occupy the resource before its next
        await."""
        insort(self._waiting, priority)
        woken = self._woken[priority] = asyncio.Event()
        try:
            while True:
                if self._waiting[0] == priority and (found := self._free()) is not None:
                    return found
                woken.clear()
                await woken.wait()
        finally:
            del self._waiting[bisect_left(self._waiting, priority)], self._woken[priority]
            self.wake()
