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
Rank = tuple[int, int]
"""Position of a waiting episode: smaller is earlier; ranks are unique."""


class Ranks:
    """Assigns ranks to episodes. An episode that has to wait again keeps its rank."""

    def __init__(self) -> None:
        self._newest = 0
        self._arrivals = itertools.count()

    def of(self, group: int) -> Rank:
        if group == EVALUATION:
            group = self._newest
        self._newest = max(self._newest, group)
        return group, next(self._arrivals)


class Queue(Generic[T]):
    """Hands out free resources to waiters, one at a time in the order of their ranks."""

    def __init__(self, free: Callable[[], T | None]) -> None:
        """free: returns a free resource or None. Its exceptions propagate to the waiter. Called for the head of the
        queue only."""
        self._free = free
        self._waiting: list[Rank] = []
        self._woken: dict[Rank, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def wake(self) -> None:
        """Makes the head of the queue check again whether a resource is free."""
        if self._waiting:
            self._woken[self._waiting[0]].set()

    async def take(self, rank: Rank) -> T:
        """Waits for all earlier ranks and for a free resource. The caller must occupy the resource before its next
        await."""
        insort(self._waiting, rank)
        woken = self._woken[rank] = asyncio.Event()
        try:
            while True:
                if self._waiting[0] == rank and (found := self._free()) is not None:
                    return found
                woken.clear()
                await woken.wait()
        finally:
            del self._waiting[bisect_left(self._waiting, rank)], self._woken[rank]
            self.wake()
