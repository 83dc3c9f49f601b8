"""Measures how an engine spends its time, and limits how long episodes may take, not counting pauses for new
weights."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from coa.errors import EpisodeTimeout
from coa.reporting.spans import steady
from coa.time_accounts import EngineState, TimeAccount, added


@dataclass(frozen=True, slots=True)
class BusyReport:
    """Report of how an engine spent its time since it started."""

    spans: tuple[tuple[float, float], ...]
    """Spans in which it was generating, by `coa.reporting.spans.steady`."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds by `EngineState`; they add up to all of the engine's time."""
    decoding: tuple[tuple[int, float, int], ...] = ()
    """(requests under way, seconds with that number of requests, tokens sampled in these seconds)."""
    place_s: float = 0.0
    """Seconds for which the engine's slot in a pool has existed; 0 for an engine outside a pool."""


def merged(reports: Sequence[BusyReport]) -> BusyReport:
    """One report for several consecutive engines."""
    decoding: dict[int, tuple[float, int]] = {}
    for report in reports:
        for requests, seconds, tokens in report.decoding:
            before = decoding.get(requests, (0.0, 0))
            decoding[requests] = before[0] + seconds, before[1] + tokens
    return BusyReport(
        spans=tuple(span for report in reports for span in report.spans),
        spent=added([report.spent for report in reports]),
        decoding=tuple((requests, *decoding[requests]) for requests in sorted(decoding)),
    )


class BusyClock:
    """Records the spans of time in which requests are under way and the engine is not paused, and the seconds in each
    state."""

    def __init__(self, tokens: Callable[[], int] = lambda: 0) -> None:
        """`tokens`: returns the number of tokens sampled so far."""
        self.under_way = 0
        self.paused = False
        self._since: float | None = None
        self._spans: list[tuple[float, float]] = []
        self._tokens, self._episodes = tokens, 0
        self._account = TimeAccount(EngineState.WEIGHTS, time.monotonic())
        self._decoding: dict[int, tuple[float, int]] = {}
        self._counted = 0
        """Requests under way in the current span, which is not yet in `_decoding`; 0 while the engine does not
        generate."""
        self._from: tuple[float, int] = 0.0, 0
        """When the current span began, and the tokens sampled until then."""

    def hold(self, episodes: int) -> None:
        """Sets the number of episodes on the engine."""
        self._episodes = episodes
        self._note()

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
            self._since = steady()
        elif not busy and self._since is not None:
            self._spans.append((self._since, steady()))
            self._since = None
        now = time.monotonic()
        self._tally(now)
        self._counted = self.under_way if busy else 0
        self._account.enter(self._state(busy), now)

    def _state(self, busy: bool) -> EngineState:
        if self.paused:
            return EngineState.SYNCING
        if busy:
            return EngineState.GENERATING
        return EngineState.TOOLS if self._episodes else EngineState.WEIGHTS

    def _tally(self, now: float) -> None:
        tokens = self._tokens()
        if self._counted:
            before = self._decoding.get(self._counted, (0.0, 0))
            began, sampled = self._from
            self._decoding[self._counted] = before[0] + now - began, before[1] + tokens - sampled
        self._from = now, tokens

    def report(self) -> BusyReport:
        now = time.monotonic()
        self._tally(now)
        current = () if self._since is None else ((self._since, steady()),)
        decoding = tuple((requests, *self._decoding[requests]) for requests in sorted(self._decoding))
        return BusyReport((*self._spans, *current), self._account.seconds(now), decoding)


class TimeLimits:
    """Time limits whose clocks stop while the engine is paused."""

    def __init__(self) -> None:
        self._left: dict[asyncio.Timeout, float] = {}
        """Seconds left for each limit in force, as of the latest pause."""
        self._paused = False

    @asynccontextmanager
    async def within(self, seconds: float | None) -> AsyncIterator[None]:
        """Cancels the body and raises EpisodeTimeout once it has taken `seconds`. None sets no limit."""
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
