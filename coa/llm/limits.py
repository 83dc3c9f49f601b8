"""Limits of an endpoint: requests at once, requests a minute, tokens a minute, and pauses that a server asks for.

    callers ── Limiter: first come, first served ── Window: may the next one start, or when? ── Permit

The tokens of a request are known only once its reply is there: a start reserves an estimate, which is corrected then.
A failed request keeps its reservation, since nobody knows what it took.
"""

import asyncio
import math
from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one endpoint; 0 is no limit."""

    concurrent: int = 0
    requests_per_minute: int = 0
    tokens_per_minute: int = 0


@dataclass(slots=True, eq=False)
class Permit:
    """One request under way."""

    at: float
    """When it started."""
    tokens: int
    """The estimate; once it is known, what the request took."""
    counted: bool = True
    """Whether its start lies in the window."""


class Window:
    """Decides when requests may start. It has no clock: callers pass the time, in seconds.

    For every t, the starts in (t - 60, t] are at most `requests_per_minute`, and their tokens, as known when the last
    of them started, at most `tokens_per_minute`. A request that needs more tokens than that has a window of its own.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._started: deque[Permit] = deque()
        self._tokens = 0
        """Tokens of all requests in `_started`."""
        self._not_before = -math.inf
        self.running = 0

    def wait_s(self, now: float, tokens: int) -> float:
        """0 if a request may start now; else the seconds after which to ask again, `inf` if another request must end
        first."""
        limits = self._limits
        if limits.concurrent and self.running >= limits.concurrent:
            return math.inf
        if now < self._not_before:
            return self._not_before - now
        self._forget(now)
        many = limits.requests_per_minute and len(self._started) >= limits.requests_per_minute
        heavy = limits.tokens_per_minute and self._tokens + self._share(tokens) > limits.tokens_per_minute
        return self._started[0].at + WINDOW_S - now if self._started and (many or heavy) else 0.0

    def start(self, now: float, tokens: int) -> Permit:
        """Counts a start; call it only where `wait_s` is 0."""
        self.running += 1
        permit = Permit(now, self._share(tokens))
        if self._limits.requests_per_minute or self._limits.tokens_per_minute:
            self._started.append(permit)
            self._tokens += permit.tokens
        else:
            permit.counted = False
        return permit

    def end(self, permit: Permit, took: int | None) -> None:
        """Counts an end. took: tokens, None where they are not known."""
        self.running -= 1
        if took is not None and permit.counted:
            self._tokens += took - permit.tokens
            permit.tokens = took

    def withdraw(self, permit: Permit) -> None:
        """Takes back a start for which nothing was sent."""
        self.running -= 1
        if permit.counted:
            self._started.remove(permit)
            self._tokens -= permit.tokens

    def pause(self, until: float) -> None:
        """Lets nothing start before the time `until`."""
        self._not_before = max(self._not_before, until)

    def _share(self, tokens: int) -> int:
        return min(tokens, self._limits.tokens_per_minute)

    def _forget(self, now: float) -> None:
        while self._started and self._started[0].at + WINDOW_S <= now:
            permit = self._started.popleft()
            permit.counted = False
            self._tokens -= permit.tokens


class Limiter:
    """A line in which callers wait for permits: `permit = await limiter.start(900)`, the request, `limiter.end(permit,
    took=412)`."""

    def __init__(self, limits: Limits) -> None:
        self._window = Window(limits)
        self._line: deque[tuple[asyncio.Future[Permit], int]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def running(self) -> int:
        return self._window.running

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter, _ in self._line)

    async def start(self, tokens: int) -> Permit:
        """Returns once it is this caller's turn; `end` must follow. tokens: what the request may take."""
        loop = asyncio.get_running_loop()
        if not self._line and self._window.wait_s(loop.time(), tokens) == 0:
            return self._window.start(loop.time(), tokens)
        waiter: asyncio.Future[Permit] = loop.create_future()
        self._line.append((waiter, tokens))
        if len(self._line) == 1:
            self._admit()
        try:
            return await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # its turn had come
                self._window.withdraw(waiter.result())
            self._admit()
            raise

    def end(self, permit: Permit, took: int | None = None) -> None:
        """Gives the permit back. took: tokens, None where they are not known."""
        self._window.end(permit, took)
        self._admit()

    def pause(self, seconds: float) -> None:
        """Lets nobody start for so long."""
        self._window.pause(asyncio.get_running_loop().time() + seconds)

    def _admit(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._line:
            waiter, tokens = self._line[0]
            if not waiter.done():
                loop = waiter.get_loop()
                wait_s = self._window.wait_s(loop.time(), tokens)
                if wait_s > 0:
                    if wait_s < math.inf:
                        self._timer = loop.call_later(wait_s, self._admit)
                    return
                waiter.set_result(self._window.start(loop.time(), tokens))
            self._line.popleft()
