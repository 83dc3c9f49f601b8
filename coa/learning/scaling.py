"""Decides how many rollout engines a run should have. Pure: readings with their times come in, a number comes out.

More engines help only if the learner waits, the engines are full, and the window allows more episodes than the engines
have places for. Each condition alone is misleading: engines are full for a while after every publication, and a learner
also waits for slow tools, or for the last episodes of an old group.

    up      the learner waits for `wait_share` of its time or more, and the engines are full:
            to engines / (1 - share), with which it would just not wait, but no more than have something to play
    down    what is played would leave the rest below `slack` of their places (`coa.scaling`)

Shares are measured over two whole steps or more, since within a step the learner first waits and then computes. The
first step is not measured, since it waits for the window to fill. If the learner waits all the time, no steps are
needed.
"""

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from coa.scaling import Pace, banded

STEPS = 2
"""Whole steps that a window has, where the learner makes any."""
ALWAYS = 0.99
"""The share of a window from which on the learner has waited for all of it."""


@dataclass(frozen=True)
class EngineScaling:
    """When rollout engines are added and removed, if `placement` gives a range."""

    wait_share: float = 0.1
    """Share of its time that the learner has to wait for batches before engines are added."""
    full: float = 0.9
    """Engines count as full if this share of their places for episodes, of their batches or of their KV caches is
    used."""
    slack: float = 0.7
    """An engine is removed if the others would stay below this share of their places, batches and KV caches. A smaller
    value keeps engines longer."""
    least_sampling: float = 0.1
    """No engine is added while requests take less than this share of the engines' batches, since episodes wait for
    tools then."""
    look_back_s: float = 60.0
    """Shortest time over which these shares are measured, besides two whole steps."""
    cooldown_s: float = 300.0
    """Time in which an engine that was added is not removed, and the other way round."""
    handover_s: float = 30.0
    """Time for which an engine that is removed may finish its episodes, before other engines continue them."""

    def __post_init__(self) -> None:
        shares = (self.wait_share, self.full, self.slack)
        if not all(0 < share < 1 for share in shares) or not 0 <= self.least_sampling < 1:
            raise ValueError("pool.scaling: wait_share, full, slack and least_sampling are shares, below 1")
        if self.slack >= self.full:
            raise ValueError(f"pool.scaling.slack is {self.slack:g}, expected less than full, {self.full:g}")
        if min(self.look_back_s, self.cooldown_s) <= 0 or self.handover_s < 0:
            raise ValueError("pool.scaling: look_back_s and cooldown_s are more than 0, handover_s is not less")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """What may be asked for, and what one engine takes."""

    least: int
    most: int
    places: int
    """Episodes on an engine at a time."""
    at_once: int
    """Requests that an engine samples at a time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The state of the loop at a moment, which is taken to hold until the next reading."""

    at: float
    """Seconds, by any clock."""
    waits: bool
    """Whether the learner waits for its batch."""
    for_old: bool
    """Whether it has enough groups, and only the deadline of older ones keeps it."""
    steps: int
    """Batches that it has learnt."""
    serving: int
    """Engines that may be given episodes."""
    joining: int
    """Engines that wait for their node, come up, or load the newest weights."""
    playing: int
    """Episodes on engines."""
    queued: int
    """Episodes that wait for a place on one."""
    sampling: int
    """Requests for tokens under way, on all engines."""
    kv_use: float
    """KV caches that those would fill, over all engines: 1.5 is one and a half."""
    admissible: int
    """Episodes that the window would still admit."""


class Signals(NamedTuple):
    """Averages over time."""

    waits: float
    for_old: float
    serving: float
    playing: float
    queued: float
    sampling: float
    kv_use: float
    headroom: float
    """Episodes that staleness lets be unfinished: those under way, and those that may be admitted."""


Mark = tuple[float, Signals]
"""A moment, and the integrals up to it."""


class Decision(NamedTuple):
    engines: int
    why: str
    """Empty where nothing changes."""


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
    """How many engines would be just full."""
    by_places = (signals.playing + signals.queued) / fleet.places
    return max(by_places, signals.sampling / fleet.at_once, signals.kv_use)


def more(signals: Signals, now: int, fleet: Fleet, config: EngineScaling) -> Decision:
    """Whether to add engines; twice as many at most."""
    full = config.full * signals.serving
    crowded = max(signals.sampling / fleet.at_once, signals.kv_use) >= full
    # Episodes of old groups have their places: they end sooner only where fewer are sampled beside them.
    curable = signals.waits if crowded else signals.waits - signals.for_old
    idle = signals.sampling < config.least_sampling * fleet.at_once * signals.serving
    if curable < config.wait_share or idle or load_of(signals, fleet) < full:
        return Decision(now, "")
    enough = math.ceil(signals.serving / (1 - curable) - 1e-9) if curable < 1 else 2 * now
    useful = math.ceil(signals.headroom / fleet.places)
    engines = min(max(now, min(enough, useful, 2 * now)), fleet.most)
    return Decision(engines, f"the learner waits {signals.waits:.0%} of its time, and the engines are full")


def fewer(signals: Signals, now: int, fleet: Fleet, config: EngineScaling) -> Decision:
    """Whether to take engines away; half of them at most."""
    load = load_of(signals, fleet)
    engines = max(banded(load, now, config.slack) if load < now else now, math.ceil(now / 2), fleet.least)
    return Decision(min(engines, now), f"what is played fills {load:.1f} engines")


class EngineController:
    """Keeps the averages, and what was decided when."""

    def __init__(self, config: EngineScaling, fleet: Fleet, engines: int) -> None:
        self._config, self._fleet = config, fleet
        self.wished = engines
        self._pace = Pace(config.cooldown_s)
        self._last: Reading | None = None
        self._sums = Signals(*[0.0] * len(Signals._fields))
        """Integrals over time, in seconds."""
        self._since: Mark = (0.0, self._sums)
        """Where engines came or went last."""
        self._ends: deque[Mark] = deque()
        """Ends of steps since then, the last of which are those of whole steps."""
        self._fulfilled = True
        """Whether as many as were wished for have served since."""

    def look(self, reading: Reading) -> Decision:
        """Takes a reading in, and decides. The number is within the fleet's bounds."""
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
        """The averages since then; None where that is not long enough ago."""
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
