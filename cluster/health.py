"""The health of a rollout engine: a state that follows from its progress and from the errors of its calls.

    STARTING ── came_up ──► STALE ── synced ──► HEALTHY ──quiet──► SUSPECT ──quiet──► DEAD
                              ▲                   │  ▲                │
                              └──── published ────┘  └── progress ────┘          RETIRED: nobody needs it any more

An engine is quiet while its long poll is not answered, and while it samples no token though requests run: a stopped
vLLM core leaves an actor that still answers, so an answer alone shows nothing. While its core is paused for new weights
no token is expected, for as long as weights of that size may take. Everything here is pure; the clock, in seconds, is
passed in.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Self

from coa.learning.scaling import EngineScaling


class State(StrEnum):
    STARTING = "starting"
    """Its process comes up."""
    STALE = "stale"
    """Up, without the newest weights: its episodes go on if it has whole ones, and it is given no new episode."""
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Quiet for too long: it is given no new episode."""
    DEAD = "dead"
    RETIRED = "retired"


FINAL = (State.DEAD, State.RETIRED)


class Fault(Enum):
    """What a call raised, as far as the engine's health is concerned."""

    GONE = "gone"
    """Its process or its vLLM core has ended, or was ended for its memory."""
    UNREACHABLE = "unreachable"
    """The call may have run or not."""
    REFUSED = "refused"
    """A sync failed before the engine's update began: it runs the weights that it had."""
    HALFWAY = "halfway"
    """A sync failed after that: the engine has no whole weights."""
    NO_WEIGHTS = "no weights"
    """The weights to load are lost, which is no fault of the engine."""


@dataclass(frozen=True)
class HealthConfig:
    """When a rollout engine counts as failed. With the defaults, an engine that has stopped is found within `dead_s`,
    and replaced within a minute if a new one starts in the remaining time."""

    suspect_s: float = 10.0
    """Time without an answer, or without a token while requests run, after which an engine gets no new episodes."""
    dead_s: float = 25.0
    """Time without an answer, or without a token while requests run, after which an engine is ended and replaced."""
    start_s: float = 900.0
    """Longest time for an engine's process to start, once Ray has placed it. Raise it for models that load slowly."""
    sync_s: float = 300.0
    """Longest time for one load of new weights, in addition to three times what the weights need at 0.5 GB/s (two ways
    to transfer them, and the load)."""
    pause_s: float = 30.0
    """Longest pause of generation while new weights are loaded, in addition to what the weights need at 0.5 GB/s."""
    syncs: int = 2
    """Loads of new weights that may fail in a row before an engine is replaced."""

    def __post_init__(self) -> None:
        if not 0 < self.suspect_s < self.dead_s:
            raise ValueError(f"suspect_s is {self.suspect_s:g}: expected more than 0 and less than {self.dead_s:g}")


@dataclass(frozen=True)
class PoolConfig:
    """What happens when rollout engines fail, and when their number changes."""

    health: HealthConfig = field(default_factory=HealthConfig)
    starts: int = 3
    """Starts of an engine that may fail in a row before it counts as given up. If all engines are given up, the run
    ends; while another one serves, it is still tried."""
    place_s: float = 1800.0
    """Longest time that an engine waits for its resources, which may include the time that an autoscaler needs for a
    node."""
    deaths: int = 5
    """Engines that may die while playing the same episode, without a finished turn in between, before the episode
    fails."""
    scaling: EngineScaling = field(default_factory=EngineScaling)
    """When engines are added and removed, if `placement.min_engines` or `max_engines` sets a range."""

    def __post_init__(self) -> None:
        if min(self.starts, self.deaths) < 1:
            raise ValueError("pool.starts and pool.deaths are 1 at least")


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """One engine from its start to its end; each method returns what it is afterwards."""

    began: float
    """When its process was asked for."""
    newest: int = 0
    """Number of the newest weights, as the pool counts what it is given: a version may be made twice."""
    holds: int | None = 0
    """Number of the weights that it runs; 0 are those of its start, None is no whole ones."""
    up: bool = False
    suspect: bool = False
    ended: State | None = None
    why: str = ""
    """Why it is DEAD."""
    answered_at: float = 0.0
    progressed_at: float = 0.0
    tokens: int = 0
    generating: int = 0
    syncing_since: float | None = None
    loading_s: float = 0.0
    """What the weights of the sync need at the lowest rate."""
    paused: bool = False
    """Whether its core said last that it was paused."""
    paused_since: float | None = None
    """When its core was first seen paused in this sync."""
    failed_syncs: int = 0
    limits: HealthConfig = field(default_factory=HealthConfig)

    @property
    def state(self) -> State:
        if self.ended is not None:
            return self.ended
        if not self.up:
            return State.STARTING
        if self.suspect:
            return State.SUSPECT
        return State.HEALTHY if self.holds == self.newest else State.STALE

    # --- what it gets done ----------------------------------------------------------------------------------------

    def came_up(self, now: float) -> Self:
        """Its process is there, with the weights of its start."""
        return self._with(now, up=True, answered_at=now, progressed_at=now)

    def answered(self, now: float, *, tokens: int, generating: int, paused: bool = False) -> Self:
        """Its long poll came back: tokens sampled so far, requests under way, and whether its core has stopped sampling
        for new weights. A sync alone is no excuse: it may wait for a core that stands still."""
        progress = paused or tokens > self.tokens or not self.generating
        begins = paused and not self.paused and self.syncing_since is not None
        return self._with(
            now,
            paused=paused,
            paused_since=now if begins else self.paused_since if paused else None,
            answered_at=now,
            progressed_at=now if progress else self.progressed_at,
            tokens=tokens,
            generating=generating,
        )

    def published(self, number: int) -> Self:
        """There are newer weights."""
        return self if self.ended else replace(self, newest=number)

    def sync_began(self, now: float, loading_s: float = 0.0) -> Self:
        """`loading_s`: what weights of that size need at the lowest rate."""
        return self._with(now, syncing_since=now, paused_since=None, loading_s=loading_s)

    def synced(self, now: float, number: int) -> Self:
        """It runs the weights of that number."""
        return self._with(
            now, holds=number, syncing_since=None, paused=False, paused_since=None, failed_syncs=0, progressed_at=now
        )

    # --- what goes wrong ------------------------------------------------------------------------------------------

    def raised(self, now: float, fault: Fault, why: str) -> Self:
        """A call other than a sync failed."""
        match fault:
            case Fault.GONE:
                return self._died(why)
            case Fault.UNREACHABLE:
                return self._with(now, answered_at=min(self.answered_at, now - self.limits.suspect_s))
            case _:
                return self

    def sync_failed(self, now: float, fault: Fault, why: str) -> Self:
        """A sync that began has failed. Without whole weights one complete reload is tried."""
        if fault is Fault.GONE:
            return self._died(why)
        after = self._with(now, syncing_since=None, paused_since=None, progressed_at=now)
        if fault is Fault.NO_WEIGHTS or after.ended:
            return after
        whole = fault is Fault.REFUSED and self.holds is not None
        after = replace(after, failed_syncs=self.failed_syncs + 1, holds=self.holds if whole else None)
        if after.failed_syncs >= self.limits.syncs or self.holds is None:
            return after._died(why)
        return after

    def retired(self) -> Self:
        return self if self.ended else replace(self, ended=State.RETIRED)

    def tick(self, now: float) -> Self:
        """Looks at the clock."""
        return self._with(now)

    def excused(self, seconds: float) -> Self:
        """As if these seconds had not passed: whoever looks at the clock stood still, and could not hear of it."""
        if self.ended:
            return self
        return replace(
            self,
            began=self.began + seconds,
            answered_at=self.answered_at + seconds,
            progressed_at=self.progressed_at + seconds,
            syncing_since=None if self.syncing_since is None else self.syncing_since + seconds,
            paused_since=None if self.paused_since is None else self.paused_since + seconds,
        )

    def _with(self, now: float, **changes: object) -> Self:
        """The same engine after a change, seen at `now`. What has ended stays as it is."""
        if self.ended:
            return self
        after = replace(self, **changes)  # pyright: ignore[reportArgumentType]
        limits = after.limits
        if not after.up:
            late = now - after.began >= limits.start_s
            return after._died(f"it did not start within {limits.start_s:g} s") if late else after
        sync_s, pause_s = limits.sync_s + 3 * after.loading_s, limits.pause_s + after.loading_s
        if after.syncing_since is not None and now - after.syncing_since >= sync_s:
            return after._died(f"loading new weights took more than {sync_s:.0f} s")
        if after.paused_since is not None and now - after.paused_since >= pause_s:
            return after._died(f"its core was paused for new weights for more than {pause_s:.0f} s")
        silent, stuck = now - after.answered_at, after._without_progress(now)
        if silent >= limits.dead_s:
            return after._died(f"its actor gave no answer for {silent:.0f} s")
        if stuck >= limits.dead_s:
            return after._died(f"no token for {stuck:.0f} s, with {after.generating} requests under way")
        return replace(after, suspect=max(silent, stuck) >= limits.suspect_s)

    def _without_progress(self, now: float) -> float:
        """Seconds; none are counted while nothing is to be sampled."""
        at_work = self.generating > 0 and self.holds is not None
        return now - self.progressed_at if at_work else 0.0

    def _died(self, why: str) -> Self:
        return self if self.ended else replace(self, ended=State.DEAD, why=why)
