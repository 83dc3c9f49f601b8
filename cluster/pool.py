"""The rollout engines of a run: each episode goes to an engine with a free place, and moves on if its engine dies.

    play(order) ──► waits for a place ──► the least loaded serving replica ──► Scored
                          ▲                     │
                          └── dies: the episode continues on another engine, from its last finished turn
    sync(version, weights) ──► every replica loads them; replicas that join load the newest

An engine's failure never ends a run. If no engine can be started any more, the pool's methods raise NoEngine.

    health     the state of an engine (pure)
    in_flight  the episodes on one engine
    places     the queue of episodes that wait for an engine
    replica    one engine from start to end, on its `link`
    slots      starts engines, and replaces them
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol, TypeVar

from actors.messages import EVALUATION, CacheStats, EpisodeId, EpisodeOrder, Publication, Result, SyncReport, TurnOrder
from actors.rollout.clocks import BusyReport
from actors.rollout.config import SamplingConfig
from actors.weights.on_disk import published_file
from cluster.engine_actor import Launch
from cluster.health import PoolConfig, State
from cluster.in_flight import EpisodeInFlight
from cluster.link import Changes
from cluster.places import Priorities, Priority, Queue
from cluster.replica import Live, Replica
from cluster.slots import FIRST_PAUSE_S, LONGEST_PAUSE_S, Slots
from coa.agent.episode import AgentConfig
from coa.agent.journal import Said
from coa.agent.records import EpisodeRecord, record_of
from coa.concurrency import doubling, together, within
from coa.errors import EngineDied, EpisodeFailed, EpisodeTimeout, InfrastructureError
from coa.planning.admission import Lengths, burden
from coa.types import Floats, Scored, Task, Tokens

T = TypeVar("T")
OTHERS_S = 30.0
"""Maximum seconds that `ready` waits for further engines: one that needs a new node takes minutes."""
SERIALS = itertools.count(1)
"""Serial numbers of evaluations, unique in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Load of the engines."""

    serving: int
    joining: int
    """Engines that wait for their node, start, or load the newest weights."""
    playing: int
    """Episodes on engines."""
    queued: int
    """Episodes that wait for a place on an engine."""
    sampling: int
    """Generation requests under way."""
    kv_use: float
    """KV caches that those would fill, over all engines."""
    cache: CacheStats
    """Counters of the KV caches of all engines so far."""


class Player(Protocol):
    """The part of an EnginePool that plays training episodes."""

    async def play(self, order: EpisodeOrder) -> Scored: ...


class Evaluator(Protocol):
    """The part of an EnginePool that plays evaluation episodes."""

    async def evaluate(
        self, task: Task, samples: Sequence[int], sampling: SamplingConfig, max_turns: int | None = None, /
    ) -> tuple[EpisodeRecord, ...]: ...


class EnginePool:
    """Gives each episode to the least loaded engine, and keeps all engines at the same weight version."""

    def __init__(
        self,
        launch: Launch,
        config: PoolConfig,
        agent: AgentConfig,
        *,
        places: int,
        patience_s: float,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """places: maximum number of episodes on an engine (fewer after preemptions: `coa.planning.admission`); further
        ones wait for the first place on any engine. patience_s: total seconds of pauses before an evaluation gives up.
        say: takes a line about an engine that ends."""
        self._config, self._agent, self._patience_s = config, agent, patience_s
        self._priorities, self._queue = Priorities(), Queue(self._place)
        self._lengths = Lengths(agent.limits.max_tokens)
        self._changes = Changes(self._queue.wake)
        self._slots = Slots(launch, config, places, self._changes, say)
        self._published = 0
        self.programs: Player | None = None
        """Plays the episodes whose agent is a program."""
        self._asleep = False
        """Whether no engine is given out until the next sync."""
        self.moves = 0
        """Number of times that an episode moved to another engine."""

    # --- engines come and go ------------------------------------------------------------------------------------

    def add(self) -> int:
        """Adds an engine; returns the number of its slot. It serves once it has the newest weights."""
        return self._slots.add()

    async def ready(self) -> "EnginePool":
        """Returns the pool once an engine serves, and others that are starting serve too or `OTHERS_S` are over, so
        that the first episodes are spread over all engines. Raises NoEngine."""
        await self._serving()
        with suppress(TimeoutError):
            async with asyncio.timeout(OTHERS_S):
                await self._changes.wait_for(lambda: not self._slots.coming)
        return self

    async def drain(self, number: int, handover_s: float | None = None) -> None:
        """Gives the engine no new episodes, waits until its episodes have ended or `handover_s` is over, and retires
        it. The remaining episodes continue on other engines, from their last finished turns."""
        await self._slots.drain(number, handover_s)

    def resize(self, engines: int, handover_s: float) -> None:
        """Adds engines, or begins to drain the least needed ones, until `engines` are staying."""
        while self.size < engines:
            self.add()
        while self.size > engines:
            self._slots.leave(self._slots.least_needed(), handover_s)

    def evacuate(self, node: str, handover_s: float) -> int:
        """Replaces all engines on a node: starts new engines and drains the old ones. Returns their number."""
        leaving = [slot for slot in self._slots.staying if slot.replica and slot.replica.link.engine.node == node]
        for slot in leaving:
            self.add()
            self._slots.leave(slot.number, handover_s)
        return len(leaving)

    async def retire(self, number: int) -> None:
        """Ends the engine at once, without a replacement; its episodes continue on other engines."""
        await self._slots.retire(number)

    def replace(self, number: int) -> None:
        """Ends the engine at once, and starts another in its slot."""
        self._slots.replace(number)

    async def stop(self) -> None:
        await self._slots.stop()

    # --- episodes -----------------------------------------------------------------------------------------------

    async def play(self, order: EpisodeOrder) -> Scored:
        """Plays a graded episode, and moves it to another engine if its engine dies; cancelling this cancels the
        episode. Raises EpisodeFailed if it fails for good, or NoEngine. The wait for a place does not count against its
        time limit."""
        return await self._play_graded(EpisodeInFlight(order), self._priorities.of(order.id.group))

    async def take_turn(self, order: TurnOrder) -> Said:
        """Samples a turn for a program, as `play` does an episode."""
        turn = EpisodeInFlight(order, tokens=len(order.prompt))
        said = await self._play_until_done(turn, self._priorities.of(order.id.group))
        assert isinstance(said, Said)
        return said

    async def _play_graded(self, episode: EpisodeInFlight, priority: Priority) -> Scored:
        order = episode.order
        if isinstance(order, EpisodeOrder) and order.agent.program.is_set:
            assert self.programs is not None, "the pool of a recipe with a program has one"
            return await self.programs.play(order)
        scored = await self._play_until_done(episode, priority)
        assert isinstance(scored, Scored)
        self._lengths = self._lengths.ended(len(scored.trajectory.token_ids))
        return scored

    async def _play_until_done(self, episode: EpisodeInFlight, priority: Priority) -> Result:
        while True:
            replica = await self._queue.take(priority)
            try:
                return await replica.episodes.play(episode)
            except EngineDied as error:
                self.moves += 1
                episode.deaths += not replica.dismissed
                if episode.deaths >= self._config.deaths:
                    raise episode.failed("EngineDied", str(error)) from error

    async def evaluate(
        self, task: Task, samples: Sequence[int], sampling: SamplingConfig, max_turns: int | None = None
    ) -> tuple[EpisodeRecord, ...]:
        """Plays evaluation episodes; training groups never share the seeds of group EVALUATION. After infrastructure
        failures each episode is retried from its last finished turn; raises InfrastructureError if the retries are used
        up.

        max_turns: in place of the engines' own limit.
        """
        limits = self._agent.limits
        limits = replace(limits, max_turns=max_turns or limits.max_turns)
        serial, agent = next(SERIALS), replace(self._agent, limits=limits)

        async def one(sample: int) -> EpisodeRecord:
            order = EpisodeOrder(
                id=EpisodeId(task.id, EVALUATION, sample, serial),
                task=task,
                sampling=sampling,
                agent=agent,
                limit_s=agent.limits.max_seconds,
            )
            episode, priority = EpisodeInFlight(order), self._priorities.of(EVALUATION)
            return record_of(await self._patiently(lambda: self._play_graded(episode, priority)))

        return tuple(await together(one(sample) for sample in samples))

    async def logprobs(self, token_ids: Tokens) -> Floats:
        """Log-probs of all tokens but the first; retried like `evaluate`. Does not need a place."""

        async def attempt() -> Floats:
            replica = await self._serving()
            return await replica.link.ask(lambda engine: engine.logprobs(token_ids))

        return await self._patiently(attempt)

    async def _serving(self) -> Replica:
        """Waits for a serving replica, and returns the least loaded one."""
        await self._changes.wait_for(self._least_busy)
        replica = self._least_busy()
        assert replica is not None
        return replica

    def _place(self) -> Replica | None:
        """Where the next episode goes now."""
        return self._least_busy(lambda replica: replica.serving and replica.roomy)

    def _least_busy(self, fit: Callable[[Replica], bool] = lambda replica: replica.serving) -> Replica | None:
        """The replica that has the least to do, of those that fit; raises NoEngine, or the defect of one."""
        if self._slots.broken:
            raise self._slots.broken
        if self._asleep:
            return None
        fitting = filter(fit, self._slots.replicas().values())
        return min(fitting, key=lambda replica: burden(replica.episodes.load, self._lengths), default=None)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Retries after infrastructure failures, unless no engine can be started or the episode's time is over."""
        for pause_s in within(self._patience_s, doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S)):
            try:
                return await attempt()
            except InfrastructureError as error:
                out_of_time = isinstance(error, EpisodeFailed) and error.where == EpisodeTimeout.__name__
                if out_of_time or self._slots.broken:
                    raise
            await asyncio.sleep(pause_s)
        return await attempt()

    # --- weights ------------------------------------------------------------------------------------------------

    async def load(self, version: int, model: Path) -> None:
        """Loads a model on disk, which must be visible on all nodes, into every engine."""
        await self.sync(Publication(version, await asyncio.to_thread(published_file, version, model)))

    async def sync(self, publication: Publication) -> list[SyncReport]:
        """Loads weights into every engine; returns the reports of the engines that have loaded them. An engine that
        fails does not serve until it has loaded these weights or is replaced; later ones load the newest weights."""
        self._published += 1
        number = self._published
        up = [replica for replica in self._slots.replicas().values() if replica.link.health.up]
        self._asleep = self._slots.waiting = False  # each engine serves again once it has the new weights
        self._changes.changed()
        self._slots.publish(Live(number, publication))
        await self._changes.wait_for(lambda: all(replica.settled_at(number) for replica in up))
        return [replica.synced[1] for replica in up if replica.synced and replica.synced[0] >= number]

    async def sleep(self) -> None:
        """Makes every engine free its GPU memory until the next `sync`, once the episodes on engines have ended; new
        episodes wait meanwhile, and so does an engine that is to be started."""
        self._asleep = True
        await self._changes.wait_for(lambda: not self.occupancy.playing and not self._slots.starting)
        self._slots.waiting = True
        up = [replica for replica in self._slots.replicas().values() if replica.link.health.up]
        await asyncio.gather(*(replica.sleep() for replica in up))

    # --- state ---------------------------------------------------------------------------------------------------

    @property
    def states(self) -> dict[int, State]:
        """State of each slot's engine, by slot number."""
        return {number: replica.state for number, replica in self._slots.replicas().items()}

    @property
    def up(self) -> int:
        """Number of engines that are up and answer, with or without the newest weights."""
        return sum(state in (State.STALE, State.HEALTHY) for state in self.states.values())

    @property
    def size(self) -> int:
        """Number of engines that serve or are starting, without those being drained."""
        return len(self._slots.staying)

    @property
    def occupancy(self) -> Occupancy:
        replicas = list(self._slots.replicas().values())
        serving = [replica for replica in replicas if replica.serving]
        return Occupancy(
            serving=len(serving),
            joining=self.size - len(serving),
            playing=sum(replica.episodes.load.episodes for replica in replicas),
            queued=len(self._queue),
            sampling=sum(replica.link.health.generating for replica in serving),
            kv_use=sum(replica.kv_use for replica in serving),
            cache=self._slots.cache,
        )

    @property
    def restarts(self) -> int:
        """Number of engines that served, died and were replaced."""
        return self._slots.restarts

    @property
    def retried(self) -> int:
        """Number of retried calls of tools and graders."""
        return self._slots.retried

    async def busy(self) -> list[BusyReport]:
        """Report of each slot over all its engines; engines that do not answer count up to their last report."""
        up = [replica for replica in self._slots.replicas().values() if replica.state in (State.STALE, State.HEALTHY)]
        await asyncio.gather(*(replica.report() for replica in up))
        return self._slots.busy()
