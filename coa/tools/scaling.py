"""Decides how many tool executors a run should have. Pure; the time is passed in.

Each executor runs a number of calls of one tool at the same time. The load of a tool is its calls, running and waiting,
divided by that number, and the tool with the highest load counts: if calls wait on average over `look_back_s`, the load
is more than the executors that there are.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from coa.bounds import Above0, ProperShare
from coa.scaling import Pace, banded


@dataclass(frozen=True)
class ToolScaling:
    """When tool executors are added and removed, if `placement` gives a range."""

    slack: ProperShare = 0.7
    """An executor is removed if the others would stay below this share of the calls that they may run at the same
    time."""
    look_back_s: Above0 = 20.0
    """Seconds over which the number of calls, running and waiting, is averaged."""
    cooldown_s: Above0 = 120.0
    """Minimum seconds between adding an executor and removing one."""


class Decision(NamedTuple):
    executors: int
    why: str
    """Empty if nothing changes."""


class ExecutorController:
    """Keeps the average of the load, and what was decided when."""

    def __init__(
        self, config: ToolScaling, places: Callable[[str], int], *, least: int, most: int, executors: int
    ) -> None:
        """places: gives the number of calls of a tool that one executor runs at the same time."""
        self._config, self._places, self._least, self._most = config, places, least, most
        self.wished = executors
        self._pace = Pace(config.cooldown_s)
        self._looks: deque[tuple[float, float]] = deque()
        """Time and load of each look since the number changed last, as far back as is averaged over."""

    def look(self, at: float, running: Mapping[str, int], waiting: Mapping[str, int]) -> Decision:
        """Takes in the calls of each tool at a moment, and decides. The number is within the bounds, and enough for
        the calls that run."""
        self._looks.append((at, self._load(Counter(running) + Counter(waiting))))
        load = self._average()
        if load is None:
            return Decision(self.wished, "")
        now = self.wished
        wanted = min(max(banded(load, now, self._config.slack), math.ceil(now / 2)), 2 * now)
        if wanted < now:
            wanted = min(now, max(wanted, math.ceil(self._load(running))))
        wanted = min(max(wanted, self._least), self._most)
        step = wanted - now
        if not step or not self._pace.allows(step, at):
            return Decision(now, "")
        self.wished, self._pace = wanted, self._pace.took(step, at)
        self._looks.clear()
        return Decision(wanted, f"tool calls, running and waiting, fill {load:.1f} executors")

    def _load(self, calls: Mapping[str, int]) -> float:
        return max((count / self._places(tool) for tool, count in calls.items()), default=0.0)

    def _average(self) -> float | None:
        """The mean load over the last `look_back_s`; None if the looks do not reach back so far."""
        looks, span = self._looks, self._config.look_back_s
        while len(looks) > 1 and looks[-1][0] - looks[1][0] >= span:
            looks.popleft()
        total_s = looks[-1][0] - looks[0][0]
        if total_s < span:
            return None
        times = [at for at, _ in looks]
        held = zip(looks, times[1:], strict=False)
        return sum(load * (until - at) for (at, load), until in held) / total_s
