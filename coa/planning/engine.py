"""An engine of the simulated loop: requests that advance together.

It computes a token of each of its requests in a step, which takes `step_s` and `request_s` more for each of them;
prompts stop it for `prefill_s` a token. Beyond `max_requests` they wait, older groups first.
"""

import heapq
import itertools
from dataclasses import dataclass, field
from typing import Any

from coa.planning.admission import Load
from coa.planning.workload import Turn
from coa.spent import EngineState, TimeAccount

ROUNDING = 1e-9
"""Of a token: requests that are so near their end have ended."""


@dataclass(frozen=True, slots=True)
class Speeds:
    """Seconds, of one engine and of one learner rank."""

    step_s: float
    """Of a step with no request: what each pays once."""
    request_s: float
    """That each request adds to a step."""
    prefill_s: float
    """Of a token of a prompt that is not cached; the engine's other requests wait."""
    trained_token_s: float
    """Of a rank, for a token that the policy sampled and that is trained."""
    update_s: float
    """Of a learners' step, whatever it trains."""
    publish_s: float
    """Of the learners, behind each step."""
    load_s: float
    """From published weights to the pause: engines go on meanwhile."""
    pause_s: float
    """In which engines stand still."""


@dataclass(order=True, slots=True)
class _Request:
    finish: float
    """The engine's count of steps at which it ends."""
    number: int
    done: Any = field(compare=False)
    context: int = field(compare=False)


class Engine:
    """Requests that advance together. `steps` counts the tokens that each request has had since the beginning."""

    def __init__(self, env: Any, speeds: Speeds, max_requests: int) -> None:
        self._env, self._speeds, self._max = env, speeds, max_requests
        self._running: list[_Request] = []
        self._waiting: list[tuple[int, int, Turn, int, Any]] = []
        self._numbers = itertools.count()
        self._steps, self._since, self._prefill = 0.0, 0.0, 0.0
        self._alarm = 0
        self._paused = False
        self.episodes = self.tokens = 0
        """That it has, and the tokens that they have come to."""
        self.syncs = 0
        self.account = TimeAccount(EngineState.WEIGHTS, env.now)

    @property
    def load(self) -> Load:
        return Load(self.tokens, self.episodes)

    def hold(self, change: int) -> None:
        """An episode begins on it, or ends."""
        self.episodes += change
        self._note()

    def generate(self, turn: Turn, context: int, priority: int) -> Any:
        """The event of the turn's end. context: tokens before it, cached but for those of its prompt."""
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
            self._prefill += self._speeds.prefill_s * sum(request.context for request in self._running)
        self._note()

    def resume(self) -> None:
        self._advance()
        self._paused = False
        self._watch()

    def _step_s(self) -> float:
        return self._speeds.step_s + self._speeds.request_s * len(self._running)

    def _begin(self) -> None:
        while self._waiting and len(self._running) < self._max:
            _, number, turn, context, done = heapq.heappop(self._waiting)
            self._prefill += self._speeds.prefill_s * turn.prompt
            heapq.heappush(self._running, _Request(self._steps + turn.sampled, number, done, context))

    def _advance(self) -> None:
        """Brings the count of steps to this moment."""
        passed, self._since = self._env.now - self._since, self._env.now
        if self._paused or not self._running:
            return
        prefilled = min(self._prefill, passed)
        self._prefill -= prefilled
        if (step_s := self._step_s()) > 0:
            self._steps += (passed - prefilled) / step_s

    def _watch(self) -> None:
        """Has the next end of a request come about in its time."""
        self._note()
        self._alarm += 1
        if self._paused or not self._running:
            return
        left = max(0.0, self._running[0].finish - self._steps)
        timeout = self._env.timeout(self._prefill + left * self._step_s())
        timeout.callbacks.append(lambda _, alarm=self._alarm: self._end(alarm))

    def _end(self, alarm: int) -> None:
        if alarm != self._alarm:
            return
        self._advance()
        first = self._running[0].finish
        self._steps = max(self._steps, first)
        while self._running and self._running[0].finish <= first + ROUNDING:
            heapq.heappop(self._running).done.succeed()
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
