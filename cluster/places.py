"""The queue of episodes that wait for a place on an engine.

older groups first, and within a group whoever came first; an evaluation's episode behind every group that was there
before it, and before every group that came after it
"""

import asyncio
import itertools
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Generic, TypeVar

from actors.messages import EVALUATION

T = TypeVar("T")
Rank = tuple[int, int]
"""Where an episode stands among those that wait: smaller ones are first, and no two are alike."""


class Ranks:
    """Gives each episode its rank. An episode that has to wait again keeps its rank."""

    def __init__(self) -> None:
        self._newest = 0
        self._arrivals = itertools.count()

    def of(self, group: int) -> Rank:
        if group == EVALUATION:
            group = self._newest
        self._newest = max(self._newest, group)
        return group, next(self._arrivals)


class Queue(Generic[T]):
    """Hands out what `free` finds, to one after another in the order of their ranks."""

    def __init__(self, free: Callable[[], T | None]) -> None:
        """free: what can be had now, or None; what it raises, whoever waits meets. It is asked again once the one
        before has gone on with what it got."""
        self._free = free
        self._waiting: list[Rank] = []
        self._woken: dict[Rank, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def wake(self) -> None:
        """Something may be free: the first in the queue looks."""
        if self._waiting:
            self._woken[self._waiting[0]].set()

    async def take(self, rank: Rank) -> T:
        """What is free, once everybody before has had something. The caller occupies it before it waits again."""
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
