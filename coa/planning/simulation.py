"""A discrete-event simulation of the RL loop (`jobs/stages/reinforcement/loop.py`), with the same `Window`.

    feed ----> roll ----> (window) ----> pack ----> learners ----> publish
      ^        engines                                               |
      +---------------- room, once v + 1 is live on the engines -----+

Memory does not run out in it, nothing fails, and the driver takes no time. Spare groups that are not needed play on to
their end.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, log2, sqrt
from random import Random
from typing import TYPE_CHECKING, TypeAlias

from coa.learning.window import Ticket, Window, WindowConfig
from coa.planning.admission import Lengths, burden
from coa.planning.engine import Engine, Speeds
from coa.planning.workload import Episode, GroupWork, Turn, Workload
from coa.time_accounts import LearnerState, TimeAccount, added, shares, since

if TYPE_CHECKING:
    import simpy.events

Process: TypeAlias = "simpy.events.ProcessGenerator"
UNKNOWN_TOKENS = 1e6
"""Expected of an episode before the first has ended."""
BLOCKS = 10
"""Consecutive parts of a simulation whose throughputs are compared."""


@dataclass(frozen=True, slots=True)
class LoopShape:
    """The settings of a recipe that the simulation models."""

    window: WindowConfig
    engines: int
    ranks: int
    steps: int
    """The version at which the simulation ends."""
    max_requests: int
    """Maximum requests in an engine's batch."""
    places: int
    """Maximum episodes on an engine at a time."""
    recompute: bool = True
    """Whether new weights empty the KV cache."""
    sequence_parallel: int = 1
    """Number of ranks per sequence group."""
    updates: int = 1
    """Updates of the learner per batch."""
    cache: float = inf
    """Tokens that an engine's KV cache holds."""
    engine_gpus: float = 0.0
    """GPUs of an engine."""
    rank_gpus: float = 0.0
    """GPUs of a learner rank."""
    engine_cpus: float = 0.0
    rank_cpus: float = 0.0
    engines_per_node: float = inf
    """Engines that share a node's copy of new weights; infinite if the time to move weights is not known by node."""
    elastic: bool = False
    """Whether engines are added and taken away as they are needed; the simulation has `engines` all the time."""
    takes_turns: bool = False
    """Whether engines sleep while learners train, on the same GPUs."""

    @property
    def gpus(self) -> float:
        return self.engines * self.engine_gpus + self.ranks * self.rank_gpus

    @property
    def cpus(self) -> float:
        return self.engines * self.engine_cpus + self.ranks * self.rank_cpus

    @property
    def copies(self) -> int:
        """Copies of new weights that are made one after the other, until all nodes with engines have one: each node
        that has them gives them to one other at a time."""
        return max(1, ceil(log2(1 + self.engines / self.engines_per_node)))


@dataclass(frozen=True, slots=True)
class Forecast:
    seconds: float
    trajectories: int
    """Number of episodes that ended, trained or not."""
    trained: int
    """Number of episodes that were trained."""
    tokens: int
    """Tokens sampled in the ended episodes."""
    engine: dict[str, float]
    """Shares of the engines' time, by `EngineState`."""
    learner: dict[str, float]
    """Shares of the learners' time, by `LearnerState`."""
    staleness_mean: float
    """Mean staleness of trained tokens, in versions; a turn counts as sampled by the version at its beginning."""
    staleness_max: int
    error: float | None
    """Standard error of `trained_s`, as a share of it: how much the episodes that were drawn matter. None if fewer than
    two versions were measured."""

    @property
    def trajectories_s(self) -> float:
        return self.trajectories / self.seconds

    @property
    def trained_s(self) -> float:
        return self.trained / self.seconds


def simulate(shape: LoopShape, speeds: Speeds, work: Workload, *, seed: int = 0, warm: int = 0) -> Forecast:
    """Simulates the loop from an empty window to version `shape.steps`. warm: measurement begins when this version is
    live on the engines."""
    return Loop(shape, speeds, work, Random(seed), warm).run()


def standard_error(marks: Sequence[tuple[float, int]]) -> float | None:
    """Relative standard error of a throughput, as a ratio of means over BLOCKS consecutive parts.

    marks: (seconds, trajectories trained so far) at the beginning and after each version. None for fewer than two
    versions, or if none was trained. Source: the method of batch means (Law, Simulation Modeling and Analysis).
    """
    versions = len(marks) - 1
    blocks = min(BLOCKS, versions)
    trained, seconds = marks[-1][1] - marks[0][1], marks[-1][0] - marks[0][0]
    if blocks < 2 or not trained or not seconds:
        return None
    ends = [marks[round(versions * block / blocks)] for block in range(blocks + 1)]
    rate = trained / seconds
    off = [(after[1] - before[1] - rate * (after[0] - before[0])) ** 2 for before, after in pairwise(ends)]
    return sqrt(sum(off) / (blocks * (blocks - 1))) / (trained / blocks)


@dataclass(slots=True)
class _Played:
    """Record of a simulated group."""

    episodes: int = 0
    tokens: int = 0
    versions: int = 0
    """Sum over its tokens of the version that sampled each."""
    oldest: int = 10**9
    longest: int = 0
    """Sampled tokens of its longest episode."""


class Loop:
    """One simulation. Its methods are named after those of the real loop."""

    def __init__(self, shape: LoopShape, speeds: Speeds, work: Workload, random: Random, warm: int) -> None:
        import simpy

        self._shape, self._speeds, self._work, self._random, self._warm = shape, speeds, work, random, warm
        self._env = env = simpy.Environment()
        # More batches than are measured, so that the engines do not run out of work before the last measured batch.
        self._window = Window(shape.window, version=0, batches=shape.steps + shape.window.max_staleness + 1)
        self._engines = [Engine(env, speeds, shape.max_requests, shape.cache) for _ in range(shape.engines)]
        self._places = simpy.PriorityResource(env, capacity=shape.engines * shape.places)
        self._batches = simpy.Store(env, capacity=1)
        self._lengths = Lengths(UNKNOWN_TOKENS)
        self._changed = env.event()
        self._learner = TimeAccount(LearnerState.SAMPLES, env.now)
        self._played: dict[int, _Played] = {}
        self._stopped: set[int] = set()
        """Spare groups that were not needed."""
        self._newest = 0
        self._ended = self._trained = self._tokens = self._trained_tokens = 0
        self._age, self._oldest_age = 0, 0
        self._start: tuple[float, int, int, int, dict[str, float], dict[str, float]] = (0.0, 0, 0, 0, {}, {})
        self._versions = [(0.0, 0)]
        """(seconds, trained trajectories) at the beginning of the measurement, and when each later version was live."""

    def run(self) -> Forecast:
        self._env.process(self._feed())
        self._env.process(self._pack())
        self._env.process(self._learn())
        self._env.run(until=self._env.process(self._publish()))
        now, ended, trained, tokens, engines, learner = self._marks()
        began, *before, engines_before, learner_before = self._start
        return Forecast(
            seconds=now - began,
            trajectories=ended - before[0],
            trained=trained - before[1],
            tokens=tokens - before[2],
            engine=shares(since(engines_before, engines)),
            learner=shares(since(learner_before, learner)),
            staleness_mean=self._age / max(1, self._trained_tokens),
            staleness_max=self._oldest_age,
            error=standard_error(self._versions),
        )

    def _marks(self) -> tuple[float, int, int, int, dict[str, float], dict[str, float]]:
        now = self._env.now
        engines = added([engine.account.seconds(now) for engine in self._engines])
        return now, self._ended, self._trained, self._tokens, engines, dict(self._learner.seconds(now))

    def _change(self) -> None:
        self._changed.succeed()
        self._changed = self._env.event()

    def _feed(self) -> Process:
        while True:
            while self._window.room() > 0:
                self._env.process(self._roll(self._window.admit(), self._work.draw(self._random)))
            yield self._changed

    def _roll(self, ticket: Ticket, work: GroupWork) -> Process:
        played = self._played[ticket.group] = _Played(episodes=len(work.episodes))
        yield self._env.all_of([self._env.process(self._play(ticket, one, played)) for one in work.episodes])
        if ticket.group in self._stopped:
            return
        if work.kept:
            self._window.finish(ticket.group)
        else:
            self._window.drop(ticket.group)
        self._change()

    def _play(self, ticket: Ticket, episode: Episode, played: _Played) -> Process:
        with self._places.request(priority=ticket.group) as place:
            yield place
            engine = min(self._engines, key=lambda engine: burden(engine.load, self._lengths))
            engine.hold(1)
            context, syncs = 0, engine.syncs
            for turn in episode:
                context += turn.prompt
                lost = self._shape.recompute and engine.syncs != syncs
                asked = Turn(context, turn.sampled) if lost else turn
                played.oldest = min(played.oldest, self._window.live)
                played.tokens += turn.sampled
                played.versions += self._window.live * turn.sampled
                yield engine.generate(asked, context, ticket.group)
                engine.tokens += turn.prompt + turn.sampled
                context, syncs = context + turn.sampled, engine.syncs
                if turn.tool_s > 0:
                    yield self._env.timeout(turn.tool_s)
            played.longest = max(played.longest, sum(turn.sampled for turn in episode))
            engine.hold(-1)
            engine.tokens -= context
        self._lengths = self._lengths.ended(context)
        self._ended += 1
        self._tokens += sum(turn.sampled for turn in episode)

    def _pack(self) -> Process:
        while True:
            while (groups := self._window.take()) is None:
                yield self._changed
            version = self._window.version - 1
            batch = [self._played.pop(group) for group in groups]
            self._stopped.update(self._window.stop_spares())
            yield self._batches.put((version, batch))

    def _learn(self) -> Process:
        while True:
            self._learner.enter(LearnerState.SAMPLES, self._env.now)
            version, batch = yield self._batches.get()
            self._learner.enter(LearnerState.LEARNING, self._env.now)
            tokens, speeds = sum(group.tokens for group in batch), self._speeds
            yield self._env.timeout(speeds.update_s + self._of_a_rank(batch, tokens) * speeds.trained_token_s)
            self._learner.enter(LearnerState.PUBLISHING, self._env.now)
            yield self._env.timeout(speeds.publish_s)
            self._trained += sum(group.episodes for group in batch)
            self._trained_tokens += tokens
            self._age += sum(version * group.tokens - group.versions for group in batch)
            self._oldest_age = max([self._oldest_age, *(version - group.oldest for group in batch)])
            self._newest = version + 1
            self._window.trained(self._newest)
            self._change()

    def _of_a_rank(self, batch: Sequence[_Played], tokens: int) -> float:
        """Tokens that the busiest rank trains: a sample is not split between sequence groups, so each update takes at
        least as long as its longest sample."""
        shape = self._shape
        longest = sum(
            max((group.longest for group in batch[at :: shape.updates]), default=0) for at in range(shape.updates)
        )
        return max(tokens / shape.ranks, longest / shape.sequence_parallel)

    def _publish(self) -> Process:
        while self._window.live < self._shape.steps:
            while self._newest <= self._window.live:
                yield self._changed
            newest = self._newest
            yield self._env.timeout(self._speeds.load_s * self._shape.copies)
            for engine in self._engines:
                engine.pause(recompute=self._shape.recompute)
            yield self._env.timeout(self._speeds.pause_s)
            for engine in self._engines:
                engine.resume()
            warmed = self._window.live < self._warm <= newest
            self._window.publish(newest)
            self._change()
            self._versions.append((self._env.now, self._trained))
            if warmed:
                self._start, self._versions = self._marks(), self._versions[-1:]
                self._age = self._trained_tokens = self._oldest_age = 0
