"""Decides how many rollout engines a run should have. Pure: readings with their times come in, a number comes out.

More engines help only if the learner waits, the engines are full, and the window allows more episodes than the engines
have places for. Each condition alone is misleading: engines are full for a while after every publication, and a learner
also waits for slow tools, or for the last episodes of an old group.

    up      the learner waits for `wait_share` of its time or more, and the engines are full:
            to engines / (1 - share), enough to end the waiting, but not beyond what the window's episodes can use
    down    the remaining engines would stay below `slack` of their capacity (`coa.scaling`)

Shares are measured over two whole steps or more, since within a step the learner first waits and then computes. The
first step is not measured, since it waits for the window to fill. If the learner waits all the time, no steps are
needed.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from coa.bounds import Above0, ProperShare
from coa.scaling import Pace, banded

STEPS = 2
"""Minimum whole steps in a measurement, unless the learner waits all the time."""
LEAST_SAMPLING = 0.1
"""Share of the engines' batches below which no engine is added: episodes then mostly wait for tools."""
ALWAYS = 0.99
"""Minimum share of waiting that counts as waiting all the time."""


@dataclass(frozen=True)
class EngineScaling:
    """When rollout engines are added and removed, if `placement` gives a range."""

    wait_share: ProperShare = 0.1
    """Minimum share of its time that the learner waits for batches before engines are added."""
    full: ProperShare = 0.9
    """Engines count as full if this share of their places for episodes, of their batches or of their KV caches is
    used."""
    slack: ProperShare = 0.7
    """An engine is removed if the others would stay below this share of their places, batches and KV caches. A smaller
    value keeps engines longer."""
    look_back_s: Above0 = 60.0
    """Minimum seconds over which these shares are measured, besides two whole steps."""
    cooldown_s: Above0 = 300.0
    """Minimum seconds between adding and removing engines, in either order."""
    handover_s: float = 30.0
    """Maximum seconds for which a removed engine may finish its episodes before other engines continue them."""

    def __post_init__(self) -> None:
        if self.slack >= self.full:
            raise ValueError(f"slack is {self.slack:g}, expected less than full, {self.full:g}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Bounds of the number of engines, and the capacity of one engine."""

    least: int
    most: int
    places: int
    """Maximum episodes on an engine at a time."""
    at_once: int
    """Maximum requests that an engine samples at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The state of the RL loop at a moment, assumed constant until the next reading."""

    at: float
    """Time in seconds, by any clock."""
    waits: bool
    """Whether the learner waits for its batch."""
    for_old: bool
    """Whether enough groups are ready, so that only the deadlines of older groups hold the batch back."""
    steps: int
    """Batches that the learner has trained."""
    serving: int
    """Engines that may be given episodes."""
    joining: int
    """Engines that wait for their node, start, or load the newest weights."""
    playing: int
    """Episodes on engines."""
    queued: int
    """Episodes that wait for a place on an engine."""
    sampling: int
    """Running generation requests, on all engines."""
    kv_use: float
    """KV cache in use, summed over all engines, in KV caches: 1.5 is one and a half."""
    admissible: int
    """Episodes that the window would still admit."""


class Signals(NamedTuple):
    """Time averages of the readings."""

    waits: float
    for_old: float
    serving: float
    playing: float
    queued: float
    sampling: float
    kv_use: float
    headroom: float
    """Episodes that the staleness bound allows to be unfinished: those under way, and those that may be admitted."""


Mark = tuple[float, Signals]
"""A moment, and the integrals up to that moment."""


class Decision(NamedTuple):
    engines: int
    why: str
    """Reason for the change; empty if nothing changes."""


def signals_of(reading: Reading) -> Signals:
    return Signals(
        waits=float(reading.waits),
        for_old=float(reading.waits and reading.for_old),
        serving=reading.serving,
        playing=reading.playing,
        queued=reading.queued,
        sampling=reading.sampling,
        kv_use=reading.kv_use,
        headroom=reading.playing + reading.queued + max(0, reading.admissible),
    )


def load_of(signals: Signals, fleet: Fleet) -> float:
    """The number of engines that the load would fill exactly."""
    by_places = (signals.playing + signals.queued) / fleet.places
    return max(by_places, signals.sampling / fleet.at_once, signals.kv_use)


def more(signals: Signals, now: int, fleet: Fleet, config: EngineScaling) -> Decision:
    """Whether to add engines; at most doubles their number."""
    full = config.full * signals.serving
    crowded = max(signals.sampling / fleet.at_once, signals.kv_use) >= full
    # Episodes of old groups already have places; more engines speed them up only if the engines are crowded.
    curable = signals.waits if crowded else signals.waits - signals.for_old
    idle = signals.sampling < LEAST_SAMPLING * fleet.at_once * signals.serving
    if curable < config.wait_share or idle or load_of(signals, fleet) < full:
        return Decision(now, "")
    enough = math.ceil(signals.serving / (1 - curable) - 1e-9) if curable < 1 else 2 * now
    useful = math.ceil(signals.headroom / fleet.places)
    engines = min(max(now, min(enough, useful, 2 * now)), fleet.most)
    return Decision(engines, f"the learner waits {signals.waits:.0%} of its time, and the engines are full")


def fewer(signals: Signals, now: int, fleet: Fleet, config: EngineScaling) -> Decision:
    """Whether to remove engines; at most halves their number."""
    load = load_of(signals, fleet)
    engines = max(banded(load, now, config.slack) if load < now else now, math.ceil(now / 2), fleet.least)
    return Decision(min(engines, now), f"what is played fills {load:.1f} engines")


class EngineController:
    """Keeps the averages and the last decision."""

    def __init__(self, config: EngineScaling, fleet: Fleet, engines: int) -> None:
        self._config, self._fleet = config, fleet
        self.wished = engines
        self._pace = Pace(config.cooldown_s)
        self._last: Reading | None = None
        self._sums = Signals(*[0.0] * len(Signals._fields))
        """Time integrals of the signals, in seconds."""
        self._since: Mark = (0.0, self._sums)
        """Mark of the last change of the number of engines."""
        self._ends: deque[Mark] = deque()
        """Marks of the ends of steps since that change."""
        self._fulfilled = True
        """Whether the wished number of engines has served since the last decision."""

    def look(self, reading: Reading) -> Decision:
        """Adds a reading and decides. The number is within the fleet's bounds."""
        self._take_in(reading)
        decision = self._decide(reading)
        step = decision.engines - self.wished
        if not step or not self._pace.allows(step, reading.at):
            return Decision(self.wished, "")
        self.wished, self._pace = decision.engines, self._pace.took(step, reading.at)
        self._fulfilled = step < 0
        self._restart(reading.at)
        return decision

    def _take_in(self, reading: Reading) -> None:
        last, self._last = self._last, reading
        if last is None:
            self._restart(reading.at)
            return
        seconds = reading.at - last.at
        self._sums = Signals(
            *(total + seconds * value for total, value in zip(self._sums, signals_of(last), strict=True))
        )
        if not self._fulfilled and reading.serving >= self.wished:
            self._fulfilled = True
            self._restart(reading.at)
        elif reading.steps > last.steps:
            self._ends.append((reading.at, self._sums))
            while len(self._ends) > STEPS + 1 and reading.at - self._ends[1][0] >= self._config.look_back_s:
                self._ends.popleft()

    def _restart(self, at: float) -> None:
        self._since = at, self._sums
        self._ends.clear()

    def _over(self, mark: Mark, now: float) -> Signals | None:
        """The averages since `mark`; None if that is less than `look_back_s` ago."""
        at, sums = mark
        if now - at < self._config.look_back_s:
            return None
        return Signals(*((end - start) / (now - at) for end, start in zip(self._sums, sums, strict=True)))

    def _decide(self, reading: Reading) -> Decision:
        steps = self._over(self._ends[0], reading.at) if len(self._ends) > STEPS else None
        signals = steps or self._over(self._since, reading.at)
        if signals is None or (steps is None and signals.waits < ALWAYS):
            return Decision(self.wished, "")
        decision = Decision(self.wished, "")
        if not reading.joining:
            decision = more(signals, self.wished, self._fleet, self._config)
        if decision.engines == self.wished and steps is not None:
            decision = fewer(steps, self.wished, self._fleet, self._config)
        return decision
