"""Decides how many engines or replicas a load needs, without adding and removing them again and again. Pure; the time
is passed in.

need        0.0 ... 1.0 ... 2.0 ... 3.0       how many would be exactly at their target
of 2 now    |-- fewer --|-- 2 --|-- more --|  fewer only where the rest would be below `slack` of its target
"""

import math
from dataclasses import dataclass
from typing import Self

MOST_TIMES = 16
"""Cool-downs that pass at most before a number may turn."""


def banded(need: float, now: int, slack: float) -> int:
    """The number for a need: between adding and taking away lies a band in which nothing changes."""
    return math.ceil(need) if need > now else min(now, math.ceil(need / slack))


@dataclass(frozen=True, slots=True)
class Pace:
    """How a number changed last. Its direction changes at most once within its cool-down: what was added is not removed
    within it, nor the other way round; further changes in the same direction are allowed. If the direction changes
    again soon, as at a load between two numbers, each wait is twice as long as the one before."""

    cooldown_s: float
    changed_at: float = -math.inf
    step: int = 0
    """Number that was added last; below 0, taken away."""
    times: int = 1
    """The cool-downs that it has to wait before it turns."""

    def allows(self, step: int, now: float) -> bool:
        return step * self.step >= 0 or now - self.changed_at >= self.times * self.cooldown_s

    def took(self, step: int, now: float) -> Self:
        times = self.times
        if step * self.step < 0:
            soon = now - self.changed_at < 2 * times * self.cooldown_s
            times = min(2 * times, MOST_TIMES) if soon else 1
        return type(self)(self.cooldown_s, now, step, times)
