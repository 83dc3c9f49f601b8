"""One start of a rollout engine, until its end.

come up ──► poll: events ──► flights                     until its health says DEAD, or nobody needs it
            load: the newest weights, whenever it has others
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from actors.messages import CacheStats, EventBatch, SyncReport, Terminal
from actors.rollout.clocks import BusyReport
from actors.weights.transport import Published, slowest_s
from cluster.engine_actor import Engine, fault_of, why_of
from cluster.flights import Flights
from cluster.health import FINAL, Fault, Health, HealthConfig, State
from cluster.link import CALL_FAILED, TICK_S, Changes, Link
from coa.errors import EngineDied
from coa.planning.admission import Admission

logger = logging.getLogger(__name__)
POLL_S = 2.0
"""For so long an engine may keep a poll open without an event."""


@dataclass(frozen=True, slots=True)
class Live:
    """The newest weights that were published."""

    number: int
    """Counts what was published, from 1: a version may be made twice."""
    version: int
    weights: tuple[Any, ...]
    """What engines take besides the version."""

    @property
    def nbytes(self) -> int:
        """Of the weights, where they say it."""
        match self.weights:
            case (Published(manifest=manifest), *_):
                return manifest.layout.nbytes
            case (np.ndarray() as flat, *_):
                return flat.nbytes
            case _:
                return 0


class Replica:
    """Its health decides what happens; its loops act. `changes` is notified whenever a waiting caller might be able to
    continue."""

    def __init__(
        self, engine: Engine, limits: HealthConfig, admission: Admission, changes: Changes, live: Live | None
    ) -> None:
        now = asyncio.get_running_loop().time()
        self.link = Link(engine, Health(began=now, newest=live.number if live else 0, limits=limits), changes)
        self.flights = Flights(self.link)
        self._admission = admission
        self.draining = False
        self.replaced = False
        """Whether it was ended to start another in its place."""
        self.settled = 0
        """Number of the newest weights that it has tried to load."""
        self.synced: tuple[int, SyncReport] | None = None
        """The weights that it loaded last."""
        self.retried = 0
        """Calls of tools and graders that were tried again."""
        self.kv_use = 0.0
        """Share of its KV cache that the requests under way would fill, as it said last."""
        self.cache = CacheStats()
        """What it has done for its KV cache, as it said last."""
        self.busy = BusyReport(())
        """What it did, as it said last."""
        self.told_until: float | None = None
        """When it was asked for that; None before it has said anything."""
        self._live = live

    @property
    def state(self) -> State:
        return self.link.health.state

    @property
    def serving(self) -> bool:
        """Whether it may be given a new episode."""
        return self.state is State.HEALTHY and not self.draining

    @property
    def roomy(self) -> bool:
        """Whether it may have one more episode at a time."""
        return self.flights.load.episodes < self._admission.places

    @property
    def dismissed(self) -> bool:
        """Whether it was ended on purpose, and not by a failure: its episodes are not to be blamed."""
        return self.state is State.RETIRED or self.replaced

    @property
    def proved(self) -> bool:
        """Whether it told of an episode, or was well for longer than it takes to find that one stands still."""
        since, dead_s = self.link.served_since, self.link.health.limits.dead_s
        return self.flights.heard > 0 or (since is not None and self.link.now() - since >= 2 * dead_s)

    def settled_at(self, number: int) -> bool:
        """Whether nothing is to be waited for: it has tried to load these weights, or has ended."""
        return self.settled >= number or self.state in FINAL

    def publish(self, live: Live) -> None:
        """There are newer weights, which it loads next."""
        self._live = live
        self.link.become(self.link.health.published(live.number))

    async def live(self) -> None:
        """From its coming up to its end; raises what is a defect. Its episodes are told that it died."""
        over = self.link.over
        loops = [asyncio.ensure_future(self._come_up_and_poll()), asyncio.ensure_future(self._keep_current())]
        try:
            await asyncio.wait({*loops, over}, return_when=asyncio.FIRST_COMPLETED)
            for ended in (*loops, over):
                if ended.done():
                    ended.result()
        finally:
            for task in loops:
                task.cancel()
            try:
                self.link.close()
            finally:
                self.flights.close()

    async def _come_up_and_poll(self) -> None:
        link = self.link
        await link.watched(self._come_up())
        while not link.over.done():
            try:
                self._take_in(await link.watched(link.engine.events(self.flights.heard, POLL_S)))
            except CALL_FAILED as error:
                link.raised(error)
                await asyncio.sleep(TICK_S)

    async def _come_up(self) -> None:
        """What is raised by an engine's start is its end, whatever it is."""
        link = self.link
        try:
            await link.engine.ready()
            link.become(link.health.came_up(link.now()))
        except CALL_FAILED as error:
            link.died(why_of(error))

    def _take_in(self, batch: EventBatch) -> None:
        """What another incarnation says is refused, and so is what this one says after its end."""
        link = self.link
        if link.over.done():
            return
        if batch.incarnation != link.engine.incarnation or batch.first > self.flights.heard:
            return link.died(f"it answered as {batch.incarnation} from event {batch.first}, not {self.flights.heard}")
        self._admission = self._admission.after(
            episodes=self.flights.load.episodes,
            ended=sum(isinstance(event, Terminal) for event in batch.events),
            preemptions=batch.cache.preemptions - self.cache.preemptions,
            kv_use=batch.kv_use,
        )
        self.flights.hear(batch)
        self.retried, self.kv_use, self.cache = batch.retried, batch.kv_use, batch.cache
        link.become(
            link.health.answered(link.now(), tokens=batch.tokens, generating=batch.generating, paused=batch.paused)
        )

    async def _keep_current(self) -> None:
        link = self.link
        while not link.over.done():
            await link.changes.wait_for(self._behind)
            live = self._live
            assert live is not None
            fault = await self._load(live)
            self.settled = live.number
            link.changes.changed()
            if fault is not None:
                await asyncio.sleep(TICK_S)

    def _behind(self) -> bool:
        health, live = self.link.health, self._live
        return health.up and live is not None and live.number != health.holds

    async def _load(self, live: Live) -> Fault | None:
        link, began = self.link, self.link.now()
        link.become(link.health.sync_began(began, slowest_s(live.nbytes)))
        try:
            report = await link.engine.sync(live.version, *live.weights)
        except BaseException as error:
            # How much of this time it was paused is not known: its episodes are not charged for any of it.
            self.flights.loading_s += link.now() - began
            if not isinstance(error, CALL_FAILED):
                raise
            # Of what has no type nobody knows how far the update had come.
            fault = fault_of(error) or Fault.HALFWAY
            if fault is not Fault.NO_WEIGHTS:  # which is asked for every second
                logger.warning("an engine has not taken version %d: %s", live.version, why_of(error))
            link.become(link.health.sync_failed(link.now(), fault, why_of(error)))
            return fault
        self.flights.loading_s += report.pause_s
        self.synced = live.number, report
        link.become(link.health.synced(link.now(), live.number))
        link.beside(self.report())
        return None

    async def sleep(self) -> None:
        """Has the engine give up its memory until it loads weights; one that ends meanwhile has none."""
        with suppress(EngineDied):
            await self.link.ask(lambda engine: engine.sleep())

    async def report(self) -> None:
        """Asks it when it was generating, now and then: nobody can ask one that has ended."""
        asked = self.link.now()
        with suppress(EngineDied):
            self.busy = await self.link.ask(lambda engine: engine.busy())
            self.told_until = asked
