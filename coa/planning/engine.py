"""An engine of the simulated loop: requests that advance together.

A step computes one token of each running request, and takes a time that depends on their number; prefill interrupts
decoding for `prefill_s` per token. Requests beyond `max_requests` wait, older groups first.
"""

import heapq
import itertools
from bisect import bisect_left
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from coa.planning.admission import Load
from coa.planning.workload import Turn
from coa.time_accounts import EngineState, TimeAccount

if TYPE_CHECKING:
    import simpy

ROUNDING = 1e-9
"""Rounding tolerance, in tokens: a request with less than this left has ended."""


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of a decoding step by its number of requests: linear between `points`, and as between the two nearest
    ones outside of them, but never below 0."""

    points: tuple[tuple[float, float], ...]
    """(requests, seconds) by increasing number of requests; at least two."""

    @classmethod
    def linear(cls, step_s: float, request_s: float = 0.0) -> "StepTimes":
        """A fixed time, and an additional time per request."""
        return cls(((0.0, step_s), (1.0, step_s + request_s)))

    def of(self, requests: float) -> float:
        after = min(max(bisect_left(self.points, (requests,)), 1), len(self.points) - 1)
        (low, least), (high, most) = self.points[after - 1 : after + 1]
        return max(0.0, least + (most - least) * (requests - low) / (high - low))


@dataclass(frozen=True, slots=True)
class Speeds:
    """Times of one engine and of one learner rank, in seconds."""

    steps: StepTimes
    """Time of a decoding step."""
    prefill_s: float
    """Prefill time per uncached token; the engine's other requests wait."""
    trained_token_s: float
    """Time of one rank per trained token that the policy sampled."""
    update_s: float
    """Fixed time of a learner step."""
    publish_s: float
    """Time to publish the weights after each learner step."""
    load_s: float
    """Time from published weights to the engines' pause, for each of `LoopShape.copies`; engines continue meanwhile."""
    pause_s: float
    """Time for which engines pause to switch weights."""


_Request = tuple[float, int, int, "simpy.Event"]
"""The engine's step count at which the request ends, its number, the tokens before it, and the event of its end."""


class Engine:
    """Requests that advance together; the engine counts decoding steps, each of one token per request."""

    def __init__(self, env: "simpy.Environment", speeds: Speeds, max_requests: int, cache: float = inf) -> None:
        """cache: tokens that the KV cache holds."""
        self._env, self._speeds, self._max, self._cache = env, speeds, max_requests, cache
        self._running: list[_Request] = []
        self._waiting: list[tuple[int, int, Turn, int, simpy.Event]] = []
        self._numbers = itertools.count()
        self._steps, self._since, self._prefill = 0.0, 0.0, 0.0
        self._step_times: dict[int, float] = {}
        """Seconds of a step by its number of requests, as far as they were asked for."""
        self._alarm = 0
        self._paused = False
        self.episodes = self.tokens = 0
        """Episodes that the engine has, and the number of their tokens so far."""
        self.syncs = 0
        self.account = TimeAccount(EngineState.WEIGHTS, env.now)

    @property
    def load(self) -> Load:
        return Load(self.tokens, self.episodes)

    def hold(self, change: int) -> None:
        """An episode begins (1) or ends (-1) on the engine."""
        self.episodes += change
        self._note()

    def generate(self, turn: Turn, context: int, priority: int) -> "simpy.Event":
        """The event of the turn's end. context: tokens before the turn. Those of `turn.prompt` are computed, and of the
        others the share that the cache lacks: it has room for `cache` of its episodes' tokens, of each equally."""
        self._advance()
        done = self._env.event()
        heapq.heappush(self._waiting, (priority, next(self._numbers), turn, context, done))
        self._begin()
        self._watch()
        return done

    def pause(self, *, recompute: bool) -> None:
        self._advance()
        self._paused = True
        self.syncs += 1
        if recompute:
            self._prefill += self._speeds.prefill_s * sum(context for _, _, context, _ in self._running)
        self._note()

    def resume(self) -> None:
        self._advance()
        self._paused = False
        self._watch()

    def _step_s(self) -> float:
        requests = len(self._running)
        if (found := self._step_times.get(requests)) is None:
            found = self._step_times[requests] = self._speeds.steps.of(requests)
        return found

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._max:
            _, number, turn, context, done = heapq.heappop(self._waiting)
            lost = 1 - min(1.0, self._cache / self.tokens) if self.tokens else 0.0
            self._prefill += self._speeds.prefill_s * (turn.prompt + lost * (context - turn.prompt))
            heapq.heappush(self._running, (self._steps + turn.sampled, number, context, done))

    def _advance(self) -> None:
        """Updates the step count to the current time."""
        passed, self._since = self._env.now - self._since, self._env.now
        if self._paused or not self._running:
            return
        prefilled = min(self._prefill, passed)
        self._prefill -= prefilled
        if (step_s := self._step_s()) > 0:
            self._steps += (passed - prefilled) / step_s

    def _watch(self) -> None:
        """Schedules the next end of a request."""
        self._note()
        self._alarm += 1
        if self._paused or not self._running:
            return
        left = max(0.0, self._running[0][0] - self._steps)
        timeout = self._env.timeout(self._prefill + left * self._step_s())
        timeout.callbacks.append(lambda _, alarm=self._alarm: self._end(alarm))

    def _end(self, alarm: int) -> None:
        if alarm != self._alarm:
            return
        self._advance()
        first = self._running[0][0]
        self._steps = max(self._steps, first)
        while self._running and self._running[0][0] <= first + ROUNDING:
            heapq.heappop(self._running)[-1].succeed()
        self._begin()
        self._watch()

    def _note(self) -> None:
        if self._paused:
            state = EngineState.SYNCING
        elif self._running:
            state = EngineState.GENERATING
        else:
            state = EngineState.TOOLS if self.episodes else EngineState.WEIGHTS
        self.account.enter(state, self._env.now)
