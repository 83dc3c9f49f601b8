"""The expected wait of the agent's tool calls, from how many wait and how many ran lately.

    wait = calls that wait / calls that ran per second                                              (Little's law)

While it is longer than a limit, further requests would only wait longer, and are refused at once.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from coa.serving.faults import ApiError

WINDOW_S = 10.0
"""Seconds over which calls are counted."""
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
        """max_wait_s: maximum expected wait at which requests are admitted."""
        self._max_wait_s = max_wait_s
        self._seen: dict[str, deque[tuple[float, int]]] = {}
        """When calls of a tool waited lately, without a break, and how many had run by then."""
        self.wait_s = 0.0
        """Expected seconds that a call waits, at the tool with the longest wait."""

    def see(self, at_s: float, calls: Mapping[str, Calls]) -> None:
        """Takes the calls of each tool at this time."""
        waits = [0.0]
        for tool, now in calls.items():
            seen = self._seen.setdefault(tool, deque())
            if not now.waiting:
                seen.clear()  # time in which nobody waited says nothing about a wait
                continue
            seen.append((at_s, now.ran))
            while len(seen) > 2 and seen[1][0] <= at_s - WINDOW_S:
                seen.popleft()
            first_s, ran = seen[0]
            # If no call has run meanwhile, the wait is at least that long for each.
            waits.append(now.waiting * (at_s - first_s) / max(1, now.ran - ran))
        self.wait_s = max(waits)

    def check(self) -> None:
        """Raises ApiError while the expected wait is too long."""
        if self.wait_s > self._max_wait_s:
            message = "the agent's tools are overloaded"
            retry_s = min(self.wait_s - self._max_wait_s, LONGEST_S)
            raise ApiError(429, "overloaded", message, retry_after_s=max(1.0, retry_s))
