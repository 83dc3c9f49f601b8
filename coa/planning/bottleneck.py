"""Finds the bottleneck of an RL loop, and the setting that would relieve it, by simulation."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import NamedTuple

from coa.planning.engine import Speeds
from coa.planning.side_by_side import Case, Play, one_by_one
from coa.planning.simulation import Forecast, LoopShape
from coa.planning.workload import Workload
from coa.time_accounts import EngineState, LearnerState

FULL = 0.85
"""Minimum share of its time for which an engine or a learner counts as always busy."""
EXPLAINED = 0.6
"""Minimum share of the idle time of the busier half that a wait has to explain to be named as the bottleneck."""
THIN = 0.25
"""Share of a batch's places below which engines may be slow for want of requests."""
NOTICED = 0.03
"""Minimum gain for which a setting is named."""
SHORTEST, LONGEST = 8, 200
"""Minimum and maximum number of versions that a simulation measures."""


class Limit(NamedTuple):
    """A bottleneck of the loop."""

    part: str
    """In a word or two: "engines", "learners", "tools", ..."""
    sentence: str


class Batch(NamedTuple):
    """How full the batch of an engine was while it generated."""

    requests: float
    """Mean over that time."""
    most: int
    """Maximum number of requests that an engine takes at once."""


def mean_batch(decoding: Sequence[tuple[int, float, int]], most: int) -> Batch | None:
    """decoding: (requests under way, seconds, tokens). None if no engine generated."""
    seconds = sum(spent for _, spent, _ in decoding)
    if not seconds:
        return None
    return Batch(sum(min(requests, most) * spent for requests, spent, _ in decoding) / seconds, most)


def bottleneck(
    engine: Mapping[str, float],
    learner: Mapping[str, float],
    batch: Batch | None = None,
    *,
    takes_turns: bool = False,
) -> Limit:
    """Finds the bottleneck of the loop. engine, learner: shares of their time by state. batch: that of the engines, if
    known: an engine generates also while a single request of many is under way. takes_turns: whether engines sleep
    while learners train.

    If neither half is always busy, a wait is named that explains most of the idle time of the busier half.
    """
    generating, learning = engine.get(EngineState.GENERATING, 0.0), learner.get(LearnerState.LEARNING, 0.0)
    at_once = f" ({batch.requests:.1f} of {batch.most} requests at once)" if batch else ""
    ours = f"engines generated {generating:.0%} of the time{at_once}, learners learnt {learning:.0%}"
    part = "engines" if generating >= learning else "learners"
    if max(generating, learning) >= FULL:
        weights, samples = engine.get(EngineState.WEIGHTS, 0.0), learner.get(LearnerState.SAMPLES, 0.0)
        thin = batch is not None and batch.requests < THIN * batch.most
        rest = {
            "engines": f" and waited {samples:.0%} for samples"
            + ("; most places of a batch are empty, so tools or a small window may slow them as much" * thin),
            "learners": f", engines waited {weights:.0%} for weights",
        }
        return Limit(part, f"{part.capitalize()} are the bottleneck: {ours}{rest[part]}.")
    if takes_turns and generating + learning >= FULL:
        return Limit(part, f"{part.capitalize()} have the longer turn on the GPUs that both share: {ours}.")
    waits = _waits(engine, learner)
    worst = max(waits, key=lambda part: waits[part][0])
    share, sentence = waits[worst]
    if share >= EXPLAINED * (1 - max(generating, learning)):
        return Limit(worst, f"{sentence}; {ours}.")
    return Limit(part, f"{part.capitalize()} are the slower half, though not always busy: {ours}.")


def _waits(engine: Mapping[str, float], learner: Mapping[str, float]) -> dict[str, tuple[float, str]]:
    """Waits that both halves may have, by name: the share of the time, and a sentence."""
    tools, weights = engine.get(EngineState.TOOLS, 0.0), engine.get(EngineState.WEIGHTS, 0.0)
    samples, syncing = learner.get(LearnerState.SAMPLES, 0.0), engine.get(EngineState.SYNCING, 0.0)
    publishing, saving = learner.get(LearnerState.PUBLISHING, 0.0), learner.get(LearnerState.SAVING, 0.0)
    lost, restarting = engine.get(EngineState.GONE, 0.0), learner.get(LearnerState.GONE, 0.0)
    return {
        "tools": (tools, f"Tools are the bottleneck: engines waited {tools:.0%} for them"),
        "moving weights": (
            max(syncing, publishing),
            f"Moving weights is the bottleneck: engines paused {syncing:.0%}, learners published {publishing:.0%}",
        ),
        "staleness window": (
            min(weights, samples),
            f"The staleness window is the bottleneck: engines waited {weights:.0%} for weights, learners {samples:.0%} "
            "for samples",
        ),
        "checkpoints": (saving, f"Checkpoints are the bottleneck: learners wrote them {saving:.0%} of the time"),
        "starts and failures": (
            max(lost, restarting),
            f"Starts and failures are the bottleneck: engines did not serve {lost:.0%} of the time, learners did not "
            f"run {restarting:.0%}",
        ),
    }


@dataclass(frozen=True, slots=True)
class Change:
    """A changed value of a setting."""

    setting: str
    before: float
    after: float
    shape: LoopShape


@dataclass(frozen=True, slots=True)
class Gain:
    change: Change
    trained_s: float
    """Trajectories trained per second, by simulation."""
    gain: float
    """Relative gain over the current setting: 0.2 is a fifth more."""
    error: float
    """Standard error of the simulated throughputs, as a share, or 0 if unknown."""
    more: float = 0.0
    """GPUs that the change needs beyond those of the recipe; CPUs if the recipe has no GPUs."""
    kind: str = "GPU"
    """Of which it needs more."""

    @property
    def needs(self) -> str:
        return f"{self.more:g} more {self.kind}{'s' * (self.more != 1)}" if self.more else ""

    def in_words(self) -> str:
        change, more = self.change, f", with {self.needs}" * bool(self.more)
        return (
            f"{change.setting}={change.after:g} (now {change.before:g}): {self.gain:+.0%} trajectories a second{more}"
        )


def changes(shape: LoopShape, *, recompute: bool = False) -> Iterator[Change]:
    """One step of each setting that the simulation models, without those that a recipe can't have: a second engine or
    rank with a part of a GPU, staleness where engines sleep while learners train or beside spare groups; and without
    `placement.engines` where their number changes by itself. recompute: whether the prefill time is known; without it
    `engine.kv_on_update` has no effect."""
    window = shape.window
    if not shape.elastic and not 0 < shape.engine_gpus < 1:
        yield Change("placement.engines", shape.engines, shape.engines + 1, replace(shape, engines=shape.engines + 1))
    if not 0 < shape.rank_gpus < 1:
        ranks = shape.ranks + shape.sequence_parallel
        yield Change("rl.learner.ranks", shape.ranks, ranks, replace(shape, ranks=ranks))
    if not shape.takes_turns and not window.spares:
        later = replace(window, max_staleness=window.max_staleness + 1)
        yield Change("rl.window.max_staleness", window.max_staleness, later.max_staleness, replace(shape, window=later))
    more = replace(shape, max_requests=2 * shape.max_requests, places=2 * shape.places)
    if shape.cache == inf:  # else the cache limits the batch, or would limit twice of it
        yield Change("engine.max_concurrent", shape.max_requests, more.max_requests, more)
    if recompute and shape.recompute:
        yield Change("engine.kv_on_update (1: recompute, 0: keep)", 1, 0, replace(shape, recompute=False))


def gains(
    shape: LoopShape,
    speeds: Speeds,
    work: Workload,
    base: Forecast,
    *,
    warm: int = 0,
    seed: int = 0,
    play: Play = one_by_one,
) -> list[Gain]:
    """The gain of each change alone, the best first. base: the forecast of `shape` with the same `warm` and `seed`. A
    change that makes the warm-up longer is simulated for longer."""
    every = list(changes(shape, recompute=speeds.prefill_s > 0))
    cases = []
    for change in every:
        more = settled(change.shape) - settled(shape)
        cases.append(Case(replace(change.shape, steps=change.shape.steps + more), speeds, work, warm + more, seed))
    found = []
    for change, forecast in zip(every, play(cases), strict=True):
        gain = forecast.trained_s / base.trained_s - 1 if base.trained_s else 0.0
        error = max(base.error or 0.0, forecast.error or 0.0)
        gpus, cpus = change.shape.gpus - shape.gpus, change.shape.cpus - shape.cpus
        needed, kind = (gpus, "GPU") if shape.gpus else (cpus, "CPU")
        found.append(Gain(change, forecast.trained_s, gain, error, needed, kind))
    return sorted(found, key=lambda one: -one.gain)


def advice(found: list[Gain]) -> str:
    """A sentence on the setting with the largest gain that is not within the simulation's error and, if it needs more
    GPUs or CPUs, on the best one without. found: the best first."""
    noticed = [one for one in found if one.gain >= NOTICED]
    if not noticed:
        return "By simulation, no single setting would speed training up by 3 % or more."
    if certain := [one for one in noticed if one.gain >= one.error]:
        free = next((one for one in certain if not one.more), None)
        also = f"; with the same {certain[0].kind}s, {free.in_words()}" if certain[0].more and free else ""
        return f"By simulation: {certain[0].in_words()}{also}."
    best = noticed[0]
    return (
        f"By simulation, no single setting would surely speed training up: the largest gain, {best.gain:.0%} by "
        f"{best.change.setting}, is within the standard error of {best.error:.0%}."
    )


def measured_part(shape: LoopShape, episodes: float, turns: float, budget: int) -> tuple[LoopShape, int]:
    """(a loop with the same settings, the version from which it is measured): as many steps as `budget` turns allow,
    but at least SHORTEST and at most LONGEST measured ones. The recipe's number of steps does not matter: the few steps
    of a short run would tell more of their slowest tool calls than of the settings.
    episodes: episodes played per step; turns: turns per episode."""
    warm = settled(shape)
    steps = int(budget / max(1.0, episodes * turns)) - warm
    return replace(shape, steps=warm + max(SHORTEST, min(LONGEST, steps))), warm


def settled(shape: LoopShape) -> int:
    """The version from which a loop is in its steady state. At the beginning, the episodes of all batches in the window
    run at once, and the first batches that are full have its shortest ones."""
    return 2 * (shape.window.max_staleness + 2)
