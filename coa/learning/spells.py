"""Notices times in which most groups come to nothing, while the others let training go on: a tool that is down half of
the time, tasks that the policy has learnt. Pure."""

from collections import Counter, deque
from dataclasses import dataclass, field, replace


@dataclass(frozen=True)
class Spell:
    """A time in which most groups came to nothing."""

    why: str
    """The commonest reason when it was noticed."""
    since: int
    """Version of the weights at that time."""
    until: int | None = None
    """Version at which it was over; None if it is not."""


@dataclass
class Spells:
    """One kind of spells: by the share of the last groups that came to nothing in this way."""

    last: int
    """Number of groups that it looks back on."""
    most: float
    """Share above which a spell begins."""
    few: float
    """Share down to which it lasts."""
    begun: str
    """What is said when a spell begins, with {count} of the {last} groups, and {why}."""
    over: str
    """What is said when it is over, with {count} and {last}."""
    history: list[Spell] = field(default_factory=list)
    _outcomes: deque[str] = field(default_factory=deque)
    """Why each of the last groups came to nothing; "" if it did not."""

    def add(self, why: str) -> None:
        """A group ended. why: it came to nothing; "" if it did not."""
        self._outcomes.append(why)
        if len(self._outcomes) > self.last:
            self._outcomes.popleft()

    @property
    def share(self) -> float:
        """Of the last groups."""
        return self._count / len(self._outcomes) if self._outcomes else 0.0

    def news(self, version: int) -> list[str]:
        """A sentence if a spell has begun since the last call, or is over."""
        if self.history and (last := self.history[-1]).until is None:
            if self.share > self.few:
                return []
            self.history[-1] = replace(last, until=version)
            return [self._said(self.over)]
        if len(self._outcomes) < self.last or self.share <= self.most:
            return []
        self.history.append(Spell(self._why, version))
        return [self._said(self.begun)]

    @property
    def _count(self) -> int:
        return sum(map(bool, self._outcomes))

    @property
    def _why(self) -> str:
        """The commonest reason; of several the newest."""
        return max(Counter(filter(None, reversed(self._outcomes))).items(), key=lambda one: one[1], default=("", 0))[0]

    def _said(self, sentence: str) -> str:
        return sentence.format(count=self._count, last=len(self._outcomes), why=self._why)


def failing() -> Spells:
    """Of groups that fail."""
    return Spells(
        last=20,
        most=0.5,
        few=0.25,
        begun="most groups fail: {count} of the last {last} groups failed, most often by {why}",
        over="most groups are played again: {count} of the last {last} groups failed",
    )


def uninformative() -> Spells:
    """Of groups whose episodes are all equally good."""
    return Spells(
        last=40,
        most=0.75,
        few=0.5,
        begun="most groups teach nothing: {count} of the last {last} are all equally good, most often {why}",
        over="more groups teach something again: {count} of the last {last} are all equally good",
    )
