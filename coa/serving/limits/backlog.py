"""How long an answer of the agent is expected to wait for tools, from the calls that wait and those that ran lately.

    wait of a call    = calls that wait / calls that ran per second                                 (Little's law)
    wait of an answer = wait of a call * calls of the last answers, on average, summed over tools

While it is longer than a limit, further requests would only wait longer, and are refused at once.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass

from coa.serving.faults import ApiError

WINDOW_S = 10.0
"""Seconds over which calls are counted."""
ANSWERS = 100
"""Number of last answers whose calls are counted."""
LONGEST_S = 60.0
"""Maximum seconds that a refused client is told to wait."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one tool, of all executors together."""

    ran: int
    """Number of calls that have run so far."""
    waiting: int
    """Number of calls that wait for a place now."""


class Backlog:
    def __init__(self, max_wait_s: float) -> None:
        """max_wait_s: maximum expected wait of an answer at which requests are admitted."""
        self._max_wait_s = max_wait_s
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        """When calls of a tool waited lately, without a break, and how many had run by then."""
        self._answers: deque[Counter[str]] = deque(maxlen=ANSWERS)
        self._waiting: dict[str, tuple[int, float]] = {}
        """By tool: calls that waited at the last look, and seconds after each of which one of them got a place."""
        self._admitted = 0
        """Requests since then, each of which will have a call that waits."""

    def see(self, at_s: float, calls: Mapping[str, Calls]) -> None:
        """Takes the calls of each tool at this time; none while nobody can tell them."""
        self._admitted = 0
        self._waiting.clear()
        before, self._seen = self._seen, {}
        for tool, now in calls.items():
            if not now.waiting:
                continue  # time in which nobody waited says nothing about a wait
            seen = before.get(tool, deque())
            if seen and now.ran < seen[-1][1]:
                seen.clear()  # the dispatcher has started again, and counts anew
            self._seen[tool] = seen
            seen.append((at_s, now.ran))
            while len(seen) > 2 and seen[1][0] <= at_s - WINDOW_S:
                seen.popleft()
            first_s, ran = seen[0]
            # If no call has run meanwhile, the wait is at least that long for each.
            self._waiting[tool] = now.waiting, (at_s - first_s) / max(1, now.ran - ran)

    def answered(self, calls: Counter[str]) -> None:
        """Takes the number of calls of each tool that an answer made."""
        self._answers.append(calls)

    @property
    def wait_s(self) -> float:
        """Expected seconds that an answer waits for tools: those of all its calls, and at least those of one call of
        the tool with the longest wait."""
        waits = {tool: (waiting + self._admitted) * each_s for tool, (waiting, each_s) in self._waiting.items()}
        made = sum(self._answers, Counter[str]())
        together = sum(wait_s * made[tool] for tool, wait_s in waits.items()) / max(1, len(self._answers))
        return max(together, *waits.values(), 0.0)

    def admit(self) -> None:
        """Takes a request to the agent; raises ApiError while the expected wait is too long."""
        if (wait_s := self.wait_s) > self._max_wait_s:
            message = "the agent's tools are overloaded"
            retry_s = min(wait_s - self._max_wait_s, LONGEST_S)
            raise ApiError(429, "overloaded", message, retry_after_s=max(1.0, retry_s))
        self._admitted += 1
