"""Decides when to strike, and when a run has recovered: a state machine over observations of the run. Pure.

    PAUSED ──the pause is over──► READY ──whole, a victim is busy──► STRUCK ──whole again, and a step later──► PAUSED
                                                                        └── the stage is over ──► PAUSED

The next strike is the first one, in their order, that has a busy victim: a team of teachers is asked only now and then.
A run is whole when every part has all of its processes, alive and not stopped. That alone is no recovery, since an
engine's process exists long before it serves. A run has recovered with the first step of the learners after that which
reports all engines as up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.chaos.plan import Kind, Part, Strike

IDLE_S = 90.0
"""Seconds to wait for a busy victim of any strike; after that, an idle one of the first strike is struck."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A running process, as it was observed."""

    key: str
    """Unique name of this process."""
    part: Part
    busy: bool
    """Whether it used the CPU since the last look, or is of `WAITING`."""


@dataclass(frozen=True, slots=True)
class Step:
    """A step of the learners."""

    version: int
    at: float
    """When it was seen first."""
    engines: int
    """Number of engines that were up at that moment."""


@dataclass(frozen=True, slots=True)
class View:
    """Observations of the run at one moment."""

    seen: tuple[Seen, ...] = ()
    step: Step | None = None
    """The newest step of this round; None before the first."""
    over: bool = False
    """Whether the round's RL stage is finished."""

    def victims(self, part: Part) -> list[Seen]:
        return [one for one in self.seen if one.part is part]


@dataclass(frozen=True, slots=True)
class Struck:
    """A strike that is due now, and its victim."""

    strike: Strike
    victim: Seen


@dataclass(frozen=True, slots=True)
class Recovered:
    strike: Strike
    victim: Seen
    seconds: float
    """Time from the strike to the first step with all engines up."""
    whole_s: float
    """Time from the strike until all processes ran again."""
    stepped: bool
    """False if the stage was over before such a step: `seconds` is no recovery time then."""


@dataclass(frozen=True, slots=True)
class Course:
    """Where it stands; `advance` returns where it stands next, and what is to be done now or was found."""

    strikes: tuple[Strike, ...]
    """Strikes that are left."""
    wanted: Mapping[Part, int]
    """Number of processes of each part in a whole run."""
    last_step: int
    """Last version at which a strike may be made: after a later one, the stage would end before the recovery."""
    since: float | None = None
    """When the state began: the pause, or the wait for a busy victim; None before the first whole view."""
    ready: bool = False
    struck: Struck | None = None
    struck_at: float = 0.0
    whole_at: float | None = None
    """When the run became whole again after the strike."""

    @property
    def done(self) -> bool:
        return not self.strikes and self.struck is None

    def advance(self, now: float, view: View) -> "tuple[Course, Struck | Recovered | None]":
        if self.struck is not None:
            return self._recovering(now, view, self.struck)
        if self.done or view.over or not self._steady(view):
            return replace(self, ready=False), None
        if self.since is None:
            return replace(self, since=now), None
        if not self.ready:
            begun = now - self.since >= self.strikes[0].pause_s
            return (replace(self, ready=True, since=now) if begun else self), None
        return self._strike(now, view, self.since)

    def doing(self, now: float, view: View) -> str:
        """The state in words, for the console."""
        if view.over:
            return "evaluating"
        if self.struck is not None:
            return f"recovering from {self.struck.strike.kind}, {now - self.struck_at:.0f} s"
        if view.step is None:
            return "starting"
        return f"{len(self.strikes)} kills left"

    def _steady(self, view: View) -> bool:
        """Whether the run trains, is whole, and has enough steps left for a strike."""
        step = view.step
        return step is not None and step.version <= self.last_step and self._whole(view)

    def _strike(self, now: float, view: View, since: float) -> "tuple[Course, Struck | None]":
        for strike in self.strikes:
            if busy := [one for one in view.victims(strike.kind.part) if one.busy]:
                return self._struck(now, strike, busy)
        if now - since < IDLE_S:
            return self, None
        return self._struck(now, self.strikes[0], view.victims(self.strikes[0].kind.part))

    def _struck(self, now: float, strike: Strike, victims: Sequence[Seen]) -> "tuple[Course, Struck]":
        struck = Struck(strike, victims[strike.choose(len(victims))])
        left = tuple(one for one in self.strikes if one is not strike)
        return replace(self, strikes=left, ready=False, since=None, struck=struck, struck_at=now, whole_at=None), struck

    def _recovering(self, now: float, view: View, struck: Struck) -> "tuple[Course, Recovered | None]":
        killed = None if struck.strike.kind.stops else struck.victim.key
        if view.over:
            return self._recovered(now, struck, stepped=False, at=now)
        if killed in {one.key for one in view.seen} or not self._whole(view):
            return replace(self, whole_at=None), None
        whole_at = now if self.whole_at is None else self.whole_at
        step = view.step
        if step is not None and step.at > whole_at and step.engines >= self.wanted[Part.engine]:
            return replace(self, whole_at=whole_at)._recovered(now, struck, stepped=True, at=step.at)
        return replace(self, whole_at=whole_at), None

    def _recovered(self, now: float, struck: Struck, *, stepped: bool, at: float) -> "tuple[Course, Recovered]":
        whole_s = (now if self.whole_at is None else self.whole_at) - self.struck_at
        found = Recovered(struck.strike, struck.victim, at - self.struck_at, whole_s, stepped)
        return replace(self, struck=None, since=now, whole_at=None), found

    def _whole(self, view: View) -> bool:
        return all(len(view.victims(part)) >= count for part, count in self.wanted.items())


def kinds_of(names: Sequence[str]) -> tuple[Kind, ...]:
    """The kinds with these names; all kinds if there are no names. Raises ValueError for an unknown name."""
    return tuple(Kind(name) for name in names) or tuple(Kind)
