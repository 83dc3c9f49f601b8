"""The rollout engines of a run: each episode goes to an engine with a free place, and to another one if its engine
dies.

    play(order) ──► waits for a place ──► the serving replica with the least to do ──► Scored
                          ▲                     │
                          └── dies: the episode goes on elsewhere, from its last finished turn
    sync(version, weights) ──► every replica loads them; those that join take the newest

The failure of an engine never ends a run. If no engine can be started any more, calls of the pool raise NoEngine.

    health     what is wrong with an engine (pure)
    flights    the episodes on one engine
    places     who is next to be given a place on an engine (pure)
    replica    one engine from start to end, on its `link`
    slots      starts engines, and replaces them
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from actors.messages import EVALUATION, CacheStats, EpisodeId, EpisodeOrder, SyncReport
from actors.rollout.clocks import BusyReport
from actors.rollout.config import SamplingConfig
from actors.weights.on_disk import published_file
from cluster.engine_actor import Launch
from cluster.flights import Flight
from cluster.health import PoolConfig, State
from cluster.link import Changes
from cluster.places import Queue, Rank, Ranks
from cluster.replica import Live, Replica
from cluster.slots import FIRST_PAUSE_S, LONGEST_PAUSE_S, Slots
from coa.agent.episode import AgentConfig
from coa.agent.records import EpisodeRecord, record_of
from coa.concurrency import doubling, together, within
from coa.errors import EngineDied, EpisodeFailed, EpisodeTimeout, InfrastructureError
from coa.planning.admission import Lengths, burden
from coa.types import Floats, Scored, Task, Tokens

T = TypeVar("T")
OTHERS_S = 30.0
"""Engines that start together come up seconds apart; one whose node has yet to come takes minutes."""
SERIALS = itertools.count(1)
"""Of evaluations, each the only one of its number in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """What the engines have to do."""

    serving: int
    joining: int
    """Engines that wait for their node, come up, or load the newest weights."""
    playing: int
    """Episodes on engines."""
    queued: int
    """Episodes that wait for a place on one."""
    sampling: int
    """Requests for tokens under way."""
    kv_use: float
    """KV caches that those would fill, over all engines."""
    cache: CacheStats
    """What all engines that there were have done for their KV caches so far."""


class EnginePool:
    """Gives each episode to the engine with the least to do, and keeps all engines at one version."""

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
        """places: episodes on an engine at a time, or fewer where its KV cache is too small for them
        (`coa.planning.admission`); those beyond it wait for the first place on any engine.
        patience_s: of pauses, in all, before an evaluation gives up. say: is told of engines that end."""
        self._config, self._agent, self._patience_s = config, agent, patience_s
        self._ranks, self._queue, self._lengths = Ranks(), Queue(self._place), Lengths(agent.limits.max_tokens)
        self._changes = Changes(self._queue.wake)
        self._slots = Slots(launch, config, places, self._changes, say)
        self._published = 0
        self._asleep = False
        """Whether nobody is given an engine until the next sync."""
        self.moves = 0
        """Episodes that went on in another engine."""

    # --- engines come and go ------------------------------------------------------------------------------------

    def add(self) -> int:
        """One more engine; the number of its slot. It serves once it has the newest weights."""
        return self._slots.add()

    async def ready(self) -> "EnginePool":
        """The pool, once an engine serves, and for those that are still coming up `OTHERS_S` more at most: what is
        asked at once is dealt to all of them. Raises NoEngine."""
        await self._serving()
        with suppress(TimeoutError):
            async with asyncio.timeout(OTHERS_S):
                await self._changes.wait_for(lambda: not self._slots.coming)
        return self

    async def drain(self, number: int, handover_s: float | None = None) -> None:
        """Gives the engine nothing new, waits until its episodes have ended, or for `handover_s`, and retires it; what
        has not ended goes on elsewhere, from its last finished turn."""
        await self._slots.drain(number, handover_s)

    def resize(self, engines: int, handover_s: float) -> None:
        """Adds engines, or begins to drain those that are needed least, until so many are to stay."""
        while self.size < engines:
            self.add()
        while self.size > engines:
            self._slots.leave(self._slots.least_needed(), handover_s)

    def evacuate(self, node: str, handover_s: float) -> int:
        """Another engine for each on a node, which are drained at once; how many these are."""
        leaving = [slot for slot in self._slots.staying if slot.replica and slot.replica.link.engine.node == node]
        for slot in leaving:
            self.add()
            self._slots.leave(slot.number, handover_s)
        return len(leaving)

    async def retire(self, number: int) -> None:
        """Ends the engine for good, at once; its episodes go on elsewhere."""
        await self._slots.retire(number)

    def replace(self, number: int) -> None:
        """Ends the engine at once, and starts another in its place."""
        self._slots.replace(number)

    async def stop(self) -> None:
        await self._slots.stop()

    # --- what is played -----------------------------------------------------------------------------------------

    async def play(self, order: EpisodeOrder) -> Scored:
        """Plays an episode, on one engine after another where they die under it; ends it when cancelled. Raises
        EpisodeFailed where that fails for good, and NoEngine. The wait for a place costs it none of its time."""
        return await self._fly(Flight(order), self._ranks.of(order.id.group))

    async def _fly(self, flight: Flight, rank: Rank) -> Scored:
        while True:
            replica = await self._queue.take(rank)
            try:
                scored = await replica.flights.play(flight)
                self._lengths = self._lengths.ended(len(scored.trajectory.token_ids))
                return scored
            except EngineDied as error:
                self.moves += 1
                flight.deaths += not replica.dismissed
                if flight.deaths >= self._config.deaths:
                    raise flight.failed("EngineDied", str(error)) from error

    async def evaluate(
        self, task: Task, samples: Sequence[int], sampling: SamplingConfig, agent: AgentConfig | None = None
    ) -> tuple[EpisodeRecord, ...]:
        """Episodes to look at; no training group has the seeds of group EVALUATION. Each is tried again after
        infrastructure failures, from its last finished turn; raises InfrastructureError in the end.

        agent: how the policy is asked, where not as the engines were started; its budget may not be larger.
        """
        serial, agent = next(SERIALS), agent or self._agent

        async def one(sample: int) -> EpisodeRecord:
            order = EpisodeOrder(
                id=EpisodeId(task.id, EVALUATION, sample, serial),
                task=task,
                sampling=sampling,
                agent=agent,
                limit_s=agent.limits.max_seconds,
            )
            flight, rank = Flight(order), self._ranks.of(EVALUATION)
            return record_of(await self._patiently(lambda: self._fly(flight, rank)))

        return tuple(await together(one(sample) for sample in samples))

    async def logprobs(self, token_ids: Tokens) -> Floats:
        """Log-probs of all tokens but the first; tried again like `evaluate`. They need no place."""

        async def attempt() -> Floats:
            replica = await self._serving()
            return await replica.link.ask(lambda engine: engine.logprobs(token_ids))

        return await self._patiently(attempt)

    async def _serving(self) -> Replica:
        """The serving replica that has the least to do."""
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
        return min(fitting, key=lambda replica: burden(replica.flights.load, self._lengths), default=None)

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempts again after infrastructure failures, unless there is no engine or no time left."""
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
        """Brings every engine to a model on disk, which their nodes see as well."""
        await self.sync(version, await asyncio.to_thread(published_file, version, model), ())

    async def sync(self, version: int, *weights: Any) -> list[SyncReport]:
        """Brings every engine to `version`; the reports of those that have it. One where that fails serves no more
        until it has been brought there, or is replaced; one that joins later takes the newest weights.

        weights: what engines take besides the version.
        """
        self._published += 1
        number = self._published
        up = [replica for replica in self._slots.replicas().values() if replica.link.health.up]
        self._asleep = False  # each serves again once it is at the new weights
        self._slots.publish(Live(number, version, weights))
        await self._changes.wait_for(lambda: all(replica.settled_at(number) for replica in up))
        return [replica.synced[1] for replica in up if replica.synced and replica.synced[0] >= number]

    async def sleep(self) -> None:
        """Has every engine give up its GPU's memory until the next `sync`, once the episodes on engines have ended;
        who wants an engine meanwhile waits."""
        self._asleep = True
        await self._changes.wait_for(lambda: not self.occupancy.playing)
        up = [replica for replica in self._slots.replicas().values() if replica.link.health.up]
        await asyncio.gather(*(replica.sleep() for replica in up))

    # --- what is known of them ----------------------------------------------------------------------------------

    @property
    def states(self) -> dict[int, State]:
        """Of each slot's engine."""
        return {number: replica.state for number, replica in self._slots.replicas().items()}

    @property
    def up(self) -> int:
        """Engines that have come up and answer, with the newest weights or before they have them."""
        return sum(state in (State.STALE, State.HEALTHY) for state in self.states.values())

    @property
    def size(self) -> int:
        """Engines that are there to stay, or on their way."""
        return len(self._slots.staying)

    @property
    def occupancy(self) -> Occupancy:
        replicas = list(self._slots.replicas().values())
        serving = [replica for replica in replicas if replica.serving]
        return Occupancy(
            serving=len(serving),
            joining=self.size - len(serving),
            playing=sum(replica.flights.load.episodes for replica in replicas),
            queued=len(self._queue),
            sampling=sum(replica.link.health.generating for replica in serving),
            kv_use=sum(replica.kv_use for replica in serving),
            cache=self._slots.cache,
        )

    @property
    def restarts(self) -> int:
        """Engines that served, died, and were replaced."""
        return self._slots.restarts

    @property
    def retried(self) -> int:
        """Calls of tools and graders that were tried again."""
        return self._slots.retried

    async def busy(self) -> list[BusyReport]:
        """Of each slot, over all engines that were in it: of one that has ended, or does not answer, as far as it has
        told."""
        up = [replica for replica in self._slots.replicas().values() if replica.state in (State.STALE, State.HEALTHY)]
        await asyncio.gather(*(replica.report() for replica in up))
        return self._slots.busy()
