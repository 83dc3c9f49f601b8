"""Accounts for the time of an engine or a learner: it is in one state at a time, so the states' seconds add up to all
of its time."""

from collections.abc import Mapping, Sequence
from enum import StrEnum


class EngineState(StrEnum):
    """States of a rollout engine."""

    GENERATING = "generating"
    """A request for tokens is under way."""
    TOOLS = "waiting_for_tools"
    """Its episodes all wait for tools or graders."""
    WEIGHTS = "waiting_for_weights"
    """It has no episode: the window admits none before newer weights are live, or none is left to begin."""
    SYNCING = "syncing"
    """It is paused for new weights."""
    GONE = "not_serving"
    """There was none: it came up, or had died."""


class LearnerState(StrEnum):
    """States of the learners, as their first rank sees them."""

    LEARNING = "learning"
    SAMPLES = "waiting_for_samples"
    """There is no batch."""
    PUBLISHING = "publishing"
    """Probes are scored, and weights written to where engines take them."""
    SAVING = "saving"
    """A checkpoint is taken, or the model written."""
    GONE = "not_serving"
    """They came up, or started again."""


Spent = Mapping[str, float]
"""Seconds by state."""


class TimeAccount:
    """The seconds in each state, from a first moment on. Times are of any clock that does not go back."""

    def __init__(self, state: str, now: float) -> None:
        self._state, self._since = state, now
        self._seconds: dict[str, float] = {}

    def enter(self, state: str, now: float) -> None:
        if state != self._state:
            self._seconds = dict(self.seconds(now))
            self._state, self._since = state, now

    def seconds(self, now: float) -> Spent:
        """Up to now; their sum is the time since the first moment."""
        spent = dict(self._seconds)
        spent[self._state] = spent.get(self._state, 0.0) + now - self._since
        return spent


def added(parts: Sequence[Spent]) -> dict[str, float]:
    """Seconds of several accounts together."""
    states = dict.fromkeys(state for part in parts for state in part)
    return {state: sum(part.get(state, 0.0) for part in parts) for state in states}


def since(before: Spent, now: Spent) -> dict[str, float]:
    """Returns the seconds between two readings of one account; an account that began anew counts whole."""
    if any(now.get(state, 0.0) < seconds for state, seconds in before.items()):
        return dict(now)
    return {state: seconds - before.get(state, 0.0) for state, seconds in now.items()}


def shares(spent: Spent) -> dict[str, float]:
    """Shares of the total time by state; states without time are left out."""
    whole = sum(spent.values())
    return {str(state): seconds / whole for state, seconds in spent.items() if seconds > 0}


def filled(spent: Spent, wall_s: float, rest: str) -> dict[str, float]:
    """With `rest` for what is missing to `wall_s`. Clocks of two processes differ: an account that is longer stays as
    it is."""
    missing = max(0.0, wall_s - sum(spent.values()))
    return {**spent, rest: spent.get(rest, 0.0) + missing}
