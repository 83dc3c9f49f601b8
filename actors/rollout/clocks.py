"""Measures how long an engine works, and limits how long episodes may take. Neither counts pauses for new weights."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from coa.errors import EpisodeTimeout


@dataclass(frozen=True, slots=True)
class BusyReport:
    """Wall-clock spans in which the engine was generating, since it started."""

    spans: tuple[tuple[float, float], ...]


class BusyClock:
    """Records the spans of time in which requests are under way and the engine is not paused."""

    def __init__(self) -> None:
        self.under_way = 0
        self.paused = False
        self._since: float | None = None
        self._spans: list[tuple[float, float]] = []

    def enter(self) -> None:
        self.under_way += 1
        self._note()

    def leave(self) -> None:
        self.under_way -= 1
        self._note()

    def pause(self, paused: bool) -> None:
        self.paused = paused
        self._note()

    def _note(self) -> None:
        busy = self.under_way > 0 and not self.paused
        if busy and self._since is None:
            self._since = time.time()
        elif not busy and self._since is not None:
            self._spans.append((self._since, time.time()))
            self._since = None

    def report(self) -> BusyReport:
        current = () if self._since is None else ((self._since, time.time()),)
        return BusyReport((*self._spans, *current))


class TimeLimits:
    """Time limits whose clocks stop while the engine is paused."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Timeout, float] = {}
        """For each limit in force, the seconds that were left when the latest pause began."""
        self._paused = False

    @asynccontextmanager
    async def within(self, seconds: float | None) -> AsyncIterator[None]:
        """Cancels what is done within and raises EpisodeTimeout once it has taken `seconds`. None sets no limit."""
        if seconds is None:
            yield
            return
        try:
            async with asyncio.timeout(None if self._paused else seconds) as timeout:
                self._left[timeout] = seconds
                try:
                    yield
                finally:
                    del self._left[timeout]
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise EpisodeTimeout(f"not done within {seconds:g} s") from error

    def pause(self, paused: bool) -> None:
        if paused == self._paused:
            return
        self._paused = paused
        now = asyncio.get_running_loop().time()
        for timeout, left in self._left.items():
            if timeout.expired():
                continue
            when = timeout.when()
            if paused and when is not None:
                self._left[timeout] = when - now
            timeout.reschedule(None if paused else now + left)
