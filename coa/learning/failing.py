"""Notices that most groups fail, such as by a tool that is down half of the time, while the others let training go on.
Pure."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

LAST = 20
"""Number of groups that it looks back on."""
MOST, FEW = 0.5, 0.25
"""Share of failed ones above which most fail, and from which on down they do not any more."""


@dataclass(frozen=True)
class Spell:
    """A time in which most groups failed."""

    why: str
    """The last failure before it was noticed."""
    since: int
    """Version of the weights at that time."""
    until: int | None = None
    """Version at which it was over; None if it is not."""


@dataclass
class Failing:
    history: list[Spell] = field(default_factory=list)
    _ended: deque[bool] = field(default_factory=lambda: deque(maxlen=LAST))
    """Whether each of the last groups failed."""
    _why: str = ""

    def play(self) -> None:
        """A group was played and graded."""
        self._ended.append(False)

    def fail(self, why: str) -> None:
        """A group failed."""
        self._ended.append(True)
        self._why = why

    @property
    def share(self) -> float:
        """Of the last groups."""
        return sum(self._ended) / len(self._ended) if self._ended else 0.0

    def news(self, version: int) -> list[str]:
        """A sentence if most groups fail since the last call, or do not any more."""
        count = f"{sum(self._ended)} of the last {len(self._ended)} groups failed"
        if self.history and (last := self.history[-1]).until is None:
            if self.share > FEW:
                return []
            self.history[-1] = replace(last, until=version)
            return [f"most groups are played again: {count}"]
        if len(self._ended) < LAST or self.share <= MOST:
            return []
        self.history.append(Spell(self._why, version))
        return [f"most groups fail: {count}, the last one: {self._why}"]

    def metrics(self) -> Mapping[str, float]:
        return {"failed_fraction": self.share}
