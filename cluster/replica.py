"""One start of a rollout engine, until its end.

come up ──► poll: events ──► episodes                    until its health is DEAD or it is retired
            load: the newest weights, whenever they are not loaded
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass

from actors.messages import CacheStats, EventBatch, Publication, SyncReport, Terminal
from actors.rollout.clocks import BusyReport
from actors.weights.transport import slowest_s
from cluster.engine_actor import Engine, fault_of, why_of
from cluster.health import FINAL, Fault, Health, HealthConfig, State
from cluster.in_flight import EpisodesInFlight
from cluster.link import CALL_FAILED, TICK_S, Changes, Link
from coa.errors import EngineDied
from coa.planning.admission import Admission

logger = logging.getLogger(__name__)
SIGNS_S = 5.0
"""Seconds between two looks at the progress of an engine's start."""
POLL_S = 2.0
"""Seconds for which an engine may keep a poll open without an event."""


@dataclass(frozen=True, slots=True)
class Live:
    """The newest published weights."""

    number: int
    """Number of the publication, from 1, since a version may be published twice."""
    publication: Publication


class Replica:
    """Runs one engine: polls its events and loads new weights until its health is final. `changes` is notified whenever
    a waiting caller might be able to continue."""

    def __init__(
        self,
        engine: Engine,
        limits: HealthConfig,
        admission: Admission,
        changes: Changes,
        live: Live | None,
        slowest_s: float = 0.0,
    ) -> None:
        """slowest_s: longest time that a token has taken on earlier engines of the run."""
        now, newest = asyncio.get_running_loop().time(), live.number if live else 0
        self.link = Link(engine, Health(began=now, newest=newest, slowest_s=slowest_s, limits=limits), changes)
        self.episodes = EpisodesInFlight(self.link)
        self._admission = admission
        self.draining = False
        self.replaced = False
        """Whether the engine was ended to be replaced by another."""
        self.settled = 0
        """Number of the newest weights that the engine has tried to load."""
        self.synced: tuple[int, SyncReport] | None = None
        """Number and report of the last successful load."""
        self.retried = 0
        """Number of retried calls of tools and graders."""
        self.kv_use = 0.0
        """Share of its KV cache that the requests under way would fill, as it said last."""
        self.cache = CacheStats()
        """Counters of its KV cache, as it reported them last."""
        self.busy = BusyReport(())
        """The engine's last report."""
        self.told_until: float | None = None
        """Time at which the last report was requested; None before the first report."""
        self._live = live

    @property
    def state(self) -> State:
        return self.link.health.state

    @property
    def serving(self) -> bool:
        """Whether the engine may get new episodes."""
        return self.state is State.HEALTHY and not self.draining

    @property
    def roomy(self) -> bool:
        """Whether it may have one more episode at a time."""
        return self.episodes.load.episodes < self._admission.places

    @property
    def dismissed(self) -> bool:
        """Whether the engine was ended on purpose, so that its end does not count against its episodes."""
        return self.state is State.RETIRED or self.replaced

    @property
    def proved(self) -> bool:
        """Whether the engine has reported an event, or was HEALTHY for twice the time in which a hang is detected."""
        since, dead_s = self.link.served_since, self.link.health.limits.dead_s
        return self.episodes.received > 0 or (since is not None and self.link.now() - since >= 2 * dead_s)

    def settled_at(self, number: int) -> bool:
        """Whether the engine has tried to load these weights or has ended, so that there is nothing to wait for."""
        return self.settled >= number or self.state in FINAL

    def publish(self, live: Live) -> None:
        """Sets newer weights, which the engine loads next."""
        self._live = live
        self.link.become(self.link.health.published(live.number))

    async def live(self) -> None:
        """Runs the engine from its start to its end, then fails its episodes with EngineDied; raises unexpected
        exceptions."""
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
                self.episodes.close()

    async def _come_up_and_poll(self) -> None:
        link = self.link
        await link.watched(self._come_up())
        while not link.over.done():
            try:
                self._take_in(await link.watched(link.engine.events(self.episodes.received, POLL_S)))
            except CALL_FAILED as error:
                link.raised(error)
                await asyncio.sleep(TICK_S)

    async def _come_up(self) -> None:
        """Waits for the engine's start; any failed call in it ends the engine."""
        link = self.link
        watch = link.spawn(self._watch_start())
        try:
            await link.engine.ready()
            link.note(Health.came_up)
        except CALL_FAILED as error:
            link.died(why_of(error))
        finally:
            watch.cancel()

    async def _watch_start(self) -> None:
        """Takes note of the signs of progress that the start shows."""
        link = self.link
        while True:
            await asyncio.sleep(SIGNS_S)
            link.note(Health.starting, await link.engine.signs())

    def _take_in(self, batch: EventBatch) -> None:
        """Processes a batch. Batches after the engine's end are ignored; a batch of another incarnation ends the
        engine."""
        link = self.link
        if link.over.done():
            return
        if batch.incarnation != link.engine.incarnation or batch.first > self.episodes.received:
            return link.died(
                f"it answered as {batch.incarnation} from event {batch.first}, not {self.episodes.received}"
            )
        self._admission = self._admission.after(
            episodes=self.episodes.load.episodes,
            ended=sum(isinstance(event, Terminal) for event in batch.events),
            preemptions=batch.cache.preemptions - self.cache.preemptions,
            kv_use=batch.kv_use,
        )
        self.episodes.on_events(batch)
        self.retried, self.kv_use, self.cache = batch.retried, batch.kv_use, batch.cache
        link.note(
            Health.answered,
            tokens=batch.tokens,
            generating=batch.generating,
            paused=batch.paused,
            expected_s=batch.expected_s,
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
        link.note(Health.sync_began, slowest_s(live.publication.nbytes))
        try:
            report = await link.engine.sync(live.publication)
        except BaseException as error:
            # It is unknown how much of this time the engine was paused, so none of it counts against its episodes.
            self.episodes.loading_s += link.now() - began
            if not isinstance(error, CALL_FAILED):
                raise
            # For other exceptions it is unknown how far the update had come.
            fault = fault_of(error) or Fault.HALFWAY
            if fault is not Fault.NO_WEIGHTS:  # retried every second, which would flood the log
                logger.warning("an engine has not taken version %d: %s", live.publication.version, why_of(error))
            link.note(Health.sync_failed, fault, why_of(error))
            return fault
        self.episodes.loading_s += report.pause_s
        self.synced = live.number, report
        link.note(Health.synced, live.number)
        link.spawn(self.report())
        return None

    async def sleep(self) -> None:
        """Makes the engine free its memory until it loads weights; an engine that ends meanwhile is no error."""
        with suppress(EngineDied):
            await self.link.ask(lambda engine: engine.sleep())

    async def report(self) -> None:
        """Fetches the engine's busy report; called now and then, since an ended engine can't be asked."""
        asked = self.link.now()
        with suppress(EngineDied):
            self.busy = await self.link.ask(lambda engine: engine.busy())
            self.told_until = asked
