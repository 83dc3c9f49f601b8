"""Finds families of tasks that have vanished from what RL trains, so that it goes on without them. Pure.

    its groups come to nothing     its last LOST groups all failed (such as by a tool that is down), or were stopped as
                                   spares, since others of the batch are faster
    none is issued                 so many groups of others were issued since its last one that no order by chance would
                                   have all of its groups before them

A group whose episodes are all equally good is played, so its family is there, though nothing is learnt from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import lgamma, log

LOST = 3
"""Groups of a family in a row that come to nothing."""
LEAST_ISSUED = 20
"""Minimum number of groups of others since its last one."""
CHANCE = 1e-5
"""Probability that, in a random order of all groups so far, those of the family are all as early as they were, below
which it is no chance. A family of few groups can't be told from a rare one for long."""


@dataclass
class _Family:
    issued: int = 0
    last: int = 0
    """Number of groups of all families that had been issued with its last one."""
    lost: int = 0
    """Number of its groups since the last one that was played."""
    why: str = ""
    """Why the last of them was lost."""

    def absence(self, issued: int) -> str:
        """Why the family counts as vanished, when `issued` groups of all families have been issued; else empty."""
        if self.lost >= LOST:
            return f"its last {self.lost} groups came to nothing, the last one: {self.why}"
        others, by_chance = issued - self.last, _log_choices(self.last, self.issued) - _log_choices(issued, self.issued)
        if others >= LEAST_ISSUED and by_chance < log(CHANCE):
            return f"none of the last {others} tasks is of it, while {self.issued} of the {self.last} before were"
        return ""


def _log_choices(of: int, chosen: int) -> float:
    """Logarithm of the number of ways to choose so many of them."""
    return lgamma(of + 1) - lgamma(chosen + 1) - lgamma(of - chosen + 1)


@dataclass(frozen=True)
class Vanished:
    """A family that has vanished, once."""

    family: str
    why: str
    since: int
    """Version of the weights at that time."""
    until: int | None = None
    """Version at which it was back; None if it is not."""


@dataclass
class Families:
    """Counts the groups of each family, and remembers which families vanished and came back."""

    history: list[Vanished] = field(default_factory=list)
    _seen: dict[str, _Family] = field(default_factory=dict)
    _of: dict[int, str] = field(default_factory=dict)
    """The families of groups that are under way."""
    _issued: int = 0

    def issue(self, group: int, family: str) -> None:
        self._issued += 1
        self._of[group] = family
        seen = self._seen.setdefault(family, _Family())
        seen.issued, seen.last = seen.issued + 1, self._issued

    def lose(self, group: int, why: str) -> None:
        """The group came to nothing."""
        if family := self._of.pop(group, None):
            seen = self._seen[family]
            seen.lost, seen.why = seen.lost + 1, why

    def play(self, group: int) -> None:
        """The group was played and graded."""
        if family := self._of.pop(group, None):
            self._seen[family].lost = 0

    def void(self) -> None:
        """No group is under way any more."""
        self._of.clear()

    @property
    def missing(self) -> list[str]:
        return [one.family for one in self.history if one.until is None]

    def news(self, version: int) -> list[str]:
        """Sentences about the families that have vanished or come back since the last call."""
        found: list[str] = []
        for number, one in enumerate(self.history):
            if one.until is None and not self._seen[one.family].absence(self._issued):
                self.history[number] = Vanished(one.family, one.why, one.since, version)
                found.append(f"the family {one.family} is trained again")
        for family, seen in self._seen.items():
            if family not in self.missing and (why := seen.absence(self._issued)):
                self.history.append(Vanished(family, why, version))
                found.append(f"the family {family} has vanished from training: {why}")
        return found

    def metrics(self) -> Mapping[str, int]:
        """The number of missing families, and 1 for each of them; 0 for those that are back."""
        missing = self.missing
        each = {f"missing/{one.family}": int(one.family in missing) for one in self.history}
        return {"families_missing": len(missing), **each}
