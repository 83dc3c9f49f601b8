"""The health of a rollout engine: a state that follows from its progress and from the errors of its calls.

    STARTING ── came_up ──► STALE ── synced ──► HEALTHY ──quiet──► SUSPECT ──quiet──► DEAD
                              ▲                   │  ▲                │
                              └──── published ────┘  └── progress ────┘          RETIRED: no longer needed

An engine is quiet while its long poll is not answered, or while it samples no token although requests are under way:
the actor of a hanging vLLM core still answers, so an answer alone is not enough. How long it may go without a token
follows from its pace: the longest that a token has taken lately, and what the engine expects for the contexts that it
has to compute first. While the core is paused for new weights no token is expected, within a time limit for weights
of that size. A start is late once it shows no sign of progress for long. Everything here is pure; the clock, in
seconds, is passed in.
"""

from dataclasses import dataclass, field, replace
from enum import Enum, StrEnum
from typing import Self

from coa.bounds import Above0, AtLeast1
from coa.learning.scaling import EngineScaling


class State(StrEnum):
    STARTING = "starting"
    """The process is starting."""
    STALE = "stale"
    """Up, but without the newest weights: episodes under way continue if its weights are complete; it gets no new
    episodes."""
    HEALTHY = "healthy"
    SUSPECT = "suspect"
    """Quiet for too long: it gets no new episodes."""
    DEAD = "dead"
    RETIRED = "retired"


FINAL = (State.DEAD, State.RETIRED)


class Fault(Enum):
    """Kinds of errors of an engine's calls, by their effect on its health."""

    GONE = "gone"
    """The process or its vLLM core has ended, or was killed for its memory use."""
    UNREACHABLE = "unreachable"
    """The call may or may not have run."""
    REFUSED = "refused"
    """A sync failed before the engine's update began: the engine keeps its previous weights."""
    HALFWAY = "halfway"
    """A sync failed during the update: the engine has no complete weights."""
    NO_WEIGHTS = "no weights"
    """The weights to load are lost, which is not the engine's fault."""


SUSPECT_PACE, DEAD_PACE = 2, 4
"""Multiples of the time that a token takes by an engine's pace, after which the engine is SUSPECT and DEAD."""
PACE_HALVES_S = 300.0
"""Seconds of work after which the longest time of a token counts half: a single long one, such as the first while code
is compiled, does not hide for the rest of a run that an engine hangs."""
UNMEASURED = 12
"""Multiple of the limits for a first token, before any engine of the run has sampled one."""
STARTS_IN_ALL = 8
"""Multiple of `start_s` for a start that goes on showing signs of progress."""


@dataclass(frozen=True)
class HealthConfig:
    """Time limits after which a rollout engine counts as failed. With the defaults, a hanging engine is detected within
    `dead_s`, and replaced within a minute if a new engine starts in the remaining time. Where tokens take longer, as on
    slow CPUs, the limits follow the measured pace."""

    suspect_s: Above0 = 10.0
    """Seconds without an answer, or without a token while requests are under way, after which an engine gets no new
    episodes; without a token, at least twice as long as one takes by the engine's measured pace."""
    dead_s: float = 25.0
    """Seconds without an answer, or without a token while requests are under way, after which an engine is killed and
    replaced; without a token, at least four times as long as one takes by the engine's measured pace."""
    start_s: float = 900.0
    """Maximum seconds without a sign of progress for an engine's process that starts, once Ray has placed it. Signs are
    megabytes that it reads, and news in its log. In all, a start may take eight times as long."""
    sync_s: float = 300.0
    """Maximum seconds for one weight update, on top of three times the weights' transfer time at 0.5 GB/s (for two
    transports and the load)."""
    pause_s: float = 30.0
    """Maximum seconds for which generation pauses while new weights are loaded, on top of the weights' transfer time at
    0.5 GB/s."""
    syncs: int = 2
    """Number of consecutive failed weight updates after which an engine is replaced."""

    def __post_init__(self) -> None:
        if self.suspect_s >= self.dead_s:
            raise ValueError(f"suspect_s is {self.suspect_s:g}, expected less than dead_s={self.dead_s:g}")


@dataclass(frozen=True)
class PoolConfig:
    """Failure handling and scaling of rollout engines."""

    health: HealthConfig = field(default_factory=HealthConfig)
    starts: AtLeast1 = 3
    """Number of consecutive failed starts after which an engine counts as given up. If all engines are given up, the
    run ends; while another engine serves, starts are still retried."""
    place_s: float = 1800.0
    """Maximum seconds for which an engine waits for its resources, which may include an autoscaler's time to add a
    node."""
    deaths: AtLeast1 = 5
    """Number of engines that die while playing the same episode, without a finished turn in between, after which the
    episode fails."""
    scaling: EngineScaling = field(default_factory=EngineScaling)
    """Autoscaling of engines, if `placement.min_engines` or `max_engines` sets a range."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """Health of one engine from its start to its end; each method returns the new health."""

    began: float
    """Time at which the process was requested."""
    signs: int = 0
    """Signs of progress of the start so far."""
    signed_at: float | None = None
    """Time of the last one."""
    newest: int = 0
    """Number of the newest weights. The pool counts publications, since a version may be published twice."""
    holds: int | None = 0
    """Number of the weights that the engine runs; 0 for those of its start, None without complete weights."""
    up: bool = False
    suspect: bool = False
    ended: State | None = None
    why: str = ""
    """Reason why the engine is DEAD."""
    answered_at: float = 0.0
    progressed_at: float = 0.0
    tokens: int = 0
    generating: int = 0
    slowest_s: float = 0.0
    """Longest time that a token has taken lately, on this engine or an earlier one of the run; 0 before the first
    token."""
    expected_s: float = 0.0
    """Seconds that the next token may take by the engine's pace, for the contexts that it has to compute first."""
    syncing_since: float | None = None
    loading_s: float = 0.0
    """Seconds that the weights of the sync take at the lowest rate."""
    paused: bool = False
    """Whether the core was paused at its last answer."""
    paused_since: float | None = None
    """Time at which the core was first seen paused in this sync."""
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

    # --- progress -------------------------------------------------------------------------------------------------

    def starting(self, now: float, signs: int) -> Self:
        """The process has shown so many signs of progress."""
        further = signs > self.signs
        return self._with(now, signs=max(signs, self.signs), signed_at=now if further else self.signed_at)

    def came_up(self, now: float) -> Self:
        """The process is up, with the weights of its start."""
        return self._with(now, up=True, answered_at=now, progressed_at=now)

    def answered(
        self, now: float, *, tokens: int, generating: int, paused: bool = False, expected_s: float = 0.0
    ) -> Self:
        """The long poll was answered, with tokens sampled so far, requests under way, whether the core has paused for
        new weights, and how long the next token may take by the engine's pace. A sync without a pause does not count as
        progress, since it may be waiting for a hanging core."""
        sampled = tokens > self.tokens
        progress = paused or sampled or not self.generating
        took = now - self.progressed_at if sampled and self.generating and not self.paused else 0.0
        faded = 0.5 ** ((now - self.answered_at) / PACE_HALVES_S) if sampled else 1.0
        begins = paused and not self.paused and self.syncing_since is not None
        return self._with(
            now,
            paused=paused,
            paused_since=now if begins else self.paused_since if paused else None,
            answered_at=now,
            progressed_at=now if progress else self.progressed_at,
            tokens=tokens,
            generating=generating,
            slowest_s=max(faded * self.slowest_s, took),
            expected_s=expected_s,
        )

    def published(self, number: int) -> Self:
        """Newer weights were published."""
        return self if self.ended else replace(self, newest=number)

    def sync_began(self, now: float, loading_s: float = 0.0) -> Self:
        """A sync began. `loading_s`: seconds that weights of that size take at the lowest rate."""
        return self._with(now, syncing_since=now, paused_since=None, loading_s=loading_s)

    def synced(self, now: float, number: int) -> Self:
        """A sync succeeded: the engine runs the weights of this number."""
        return self._with(
            now, holds=number, syncing_since=None, paused=False, paused_since=None, failed_syncs=0, progressed_at=now
        )

    # --- failures -------------------------------------------------------------------------------------------------

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
        """A sync failed. An engine without complete weights gets one attempt at a complete reload."""
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
        """Checks the time limits."""
        return self._with(now)

    def excused(self, seconds: float) -> Self:
        """Shifts all times by these seconds, for which the observing process was suspended and could not get
        answers."""
        if self.ended:
            return self
        return replace(
            self,
            began=self.began + seconds,
            signed_at=None if self.signed_at is None else self.signed_at + seconds,
            answered_at=self.answered_at + seconds,
            progressed_at=self.progressed_at + seconds,
            syncing_since=None if self.syncing_since is None else self.syncing_since + seconds,
            paused_since=None if self.paused_since is None else self.paused_since + seconds,
        )

    def _with(self, now: float, **changes: object) -> Self:
        """The health after a change and a check of the time limits at `now`. A final state does not change."""
        if self.ended:
            return self
        after = replace(self, **changes)  # pyright: ignore[reportArgumentType]
        limits = after.limits
        if not after.up:
            if now - after.began >= (most_s := STARTS_IN_ALL * limits.start_s):
                return after._died(f"it did not start within {most_s:g} s")
            since = after.began if after.signed_at is None else after.signed_at
            late = now - since >= limits.start_s
            return after._died(f"its start showed no progress for {limits.start_s:g} s") if late else after
        sync_s, pause_s = limits.sync_s + 3 * after.loading_s, limits.pause_s + after.loading_s
        if after.syncing_since is not None and now - after.syncing_since >= sync_s:
            return after._died(f"loading new weights took more than {sync_s:.0f} s")
        if after.paused_since is not None and now - after.paused_since >= pause_s:
            return after._died(f"its core was paused for new weights for more than {pause_s:.0f} s")
        silent, stuck = now - after.answered_at, after._without_progress(now)
        if silent >= limits.dead_s:
            return after._died(f"its actor gave no answer for {silent:.0f} s")
        if stuck >= after._patience_s(limits.dead_s, DEAD_PACE):
            return after._died(f"no token for {stuck:.0f} s, with {after.generating} requests under way")
        quiet = silent >= limits.suspect_s or stuck >= after._patience_s(limits.suspect_s, SUSPECT_PACE)
        return replace(after, suspect=quiet)

    def _patience_s(self, least_s: float, pace: int) -> float:
        """Seconds for which the engine may go without a token."""
        measured = self.tokens > 0 or self.slowest_s > 0
        return max(least_s if measured else UNMEASURED * least_s, pace * max(self.slowest_s, self.expected_s))

    def _without_progress(self, now: float) -> float:
        """Seconds without progress; 0 while the engine has nothing to sample."""
        at_work = self.generating > 0 and self.holds is not None
        return now - self.progressed_at if at_work else 0.0

    def _died(self, why: str) -> Self:
        return self if self.ended else replace(self, ended=State.DEAD, why=why)
