"""A queue of messages from one process to another, read by long polls and kept until the reader acknowledges them.

    put(a) put(b)      acknowledge(0), next() -> 0, (a, b)      acknowledge(2), next() -> ... waits ... -> 2, (c,)

If a reply is lost, the reader polls again and gets the same items with the same numbers.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")
PACE_EACH_S, LONGEST_PACE_S = 0.002, 0.1
"""Seconds between two answers for each call or episode under way, and at most."""
LOOK_AGAIN_S = 0.01
"""Seconds after which a waiting answer asks for the pace again: once little is under way, nothing is waited for."""


def pace_of(under_way: int) -> float:
    """Minimum seconds between two answers of a sender with this many calls or episodes under way. The more are under
    way, the more of them end within a given time and share a message. With few of them, nobody waits for long."""
    return min(LONGEST_PACE_S, PACE_EACH_S * under_way)


class Outbox(Generic[T]):
    """Items numbered from 0, for one reader with one poll at a time."""

    def __init__(self, pace: Callable[[], float] = lambda: 0.0) -> None:
        """`pace`: gives the minimum seconds between two answers. A poll costs as much for one item as for a hundred,
        so the items of a busy sender are read in batches. The first item after a quiet time is delivered at once."""
        self._pace = pace
        self._answered = float("-inf")
        """When the last poll was answered, by the event loop's clock."""
        self._items: deque[T] = deque()
        self._first = 0
        """Number of the oldest kept item."""
        self._waiting: asyncio.Future[None] | None = None
        self._broken: BaseException | None = None

    @property
    def end(self) -> int:
        """Number of the next item."""
        return self._first + len(self._items)

    def put(self, item: T) -> None:
        self._items.append(item)
        self._wake()

    def fail(self, error: BaseException) -> None:
        """Makes the reader's polls raise this exception from now on."""
        self._broken = error
        self._wake()

    def acknowledge(self, count: int) -> Sequence[T]:
        """Records that the reader has the first `count` items; returns those of them that were still kept."""
        if not 0 <= count <= self.end:
            raise ValueError(f"{count} items are acknowledged, there were {self.end}")
        had = list(islice(self._items, max(0, count - self._first)))
        for _ in had:
            self._items.popleft()
        self._first += len(had)
        return had

    async def next(self, wait_s: float | None = None) -> tuple[int, tuple[T, ...]]:
        """Returns the number of the first kept item and all kept items, as soon as there is an item.

        Returns no items after `wait_s` seconds without one, or when a newer poll replaces this poll.
        """
        self._wake()
        if not self._items and self._broken is None:
            loop = asyncio.get_running_loop()
            mine = self._waiting = loop.create_future()
            timer = None if wait_s is None else loop.call_later(wait_s, _settle, mine)
            try:
                await mine
            finally:
                if timer is not None:
                    timer.cancel()
            if self._waiting is not mine:
                return self.end, ()
            self._waiting = None
        loop = asyncio.get_running_loop()
        # Even at pace 0 this yields once, so that items put in the same moment join the batch.
        await asyncio.sleep(0)
        left = self._left_s(loop)
        while left > 0:
            await asyncio.sleep(min(left, LOOK_AGAIN_S))
            left = self._left_s(loop)
        self._answered = loop.time()
        if self._broken is not None:
            raise self._broken
        return self._first, tuple(self._items)

    def _left_s(self, loop: asyncio.AbstractEventLoop) -> float:
        """Seconds until the next answer is due."""
        return self._answered + self._pace() - loop.time()

    def _wake(self) -> None:
        if self._waiting is not None:
            _settle(self._waiting)


def _settle(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
