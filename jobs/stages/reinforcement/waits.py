"""Why reinforcement waits, in words, and which settings change it.

waiting for a batch of 4 groups, 1 ready, 7 being played; 12 groups, 11 dropped: all right; such groups teach
nothing: take harder tasks (`coa select` drops those that are always solved), ...
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

ALL_RIGHT, ALL_WRONG, ALIKE = "all right", "all wrong", "all alike"
ADVICE = {
    ALL_RIGHT: (
        "take harder tasks (`coa select` drops those that are always solved), play more episodes a task (rl.group), "
        "or stop here"
    ),
    ALL_WRONG: (
        "take easier tasks (tasks.path), fine-tune for longer (sft.steps), or play more episodes a task (rl.group)"
    ),
    ALIKE: "rl.sampling.temperature or rl.group makes episodes differ more",
}
"""Advice by the commonest reason for which groups are dropped."""
NOTHING = "such groups teach nothing: "
SLOW = "smaller batches (rl.window.groups_per_batch), fewer or shorter episodes (rl.group, agent.limits.max_tokens)"
FAILED = "the last failure: "
LONGEST_FAILURE = 200


class Outcome(Protocol):
    @property
    def correct(self) -> bool: ...


def alike(episodes: Sequence[Outcome]) -> str:
    """Why nothing can be learnt from a group, in words."""
    right = {episode.correct for episode in episodes}
    return ALL_RIGHT if right == {True} else ALL_WRONG if right == {False} else ALIKE


def groups(count: int) -> str:
    return "1 group" if count == 1 else f"{count} groups"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopCounts:
    """Counts of groups and engines while the learners wait."""

    serving: int
    """Engines."""
    joining: int
    ready: int
    """Groups that are played and wait for their batch."""
    running: int
    batch: int
    """Groups of a batch."""


class Waits:
    """Outcomes of the groups since the last batch."""

    def __init__(self) -> None:
        self.played = 0
        self.failed = 0
        self.last_failure = ""
        self.dropped: Counter[str] = Counter()
        """By reason: ALL_RIGHT, ALL_WRONG, ALIKE."""

    def play(self) -> None:
        self.played += 1

    def drop(self, reason: str) -> None:
        self.dropped[reason] += 1

    def fail(self, why: str) -> None:
        self.failed += 1
        self.last_failure = " ".join(why.split())[:LONGEST_FAILURE]

    def describe(self, now: LoopCounts) -> tuple[str, str]:
        """Returns what the learners wait for, and details with advice."""
        if not now.serving:
            return "waiting for an engine", f"none serves, {now.joining} are starting or load weights"
        parts = [f"{now.ready} ready, {now.running} being played"]
        if dropped := self.dropped.total():
            parts.append(f"{groups(self.played)}, {dropped} dropped: {self._reasons()}")
        elif self.played:
            parts.append(f"{groups(self.played)} so far")
        if self.failed:
            parts.append(f"{groups(self.failed)} failed, tasks are issued again")
        return f"waiting for a batch of {now.batch} groups", "; ".join((*parts, self._advice()))

    def _reasons(self) -> str:
        """ "all right", or "9 all right, 2 all wrong" if there are several reasons."""
        if len(self.dropped) == 1:
            return next(iter(self.dropped))
        return ", ".join(f"{count} {reason}" for reason, count in self.dropped.most_common())

    def _advice(self) -> str:
        if self.failed > self.dropped.total():
            return f"{FAILED}{self.last_failure}"
        if self.dropped:
            return NOTHING + ADVICE[self.dropped.most_common(1)[0][0]]
        return f"a step comes sooner with {SLOW}"
