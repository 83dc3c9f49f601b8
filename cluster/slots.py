"""Keeps an engine in each slot of a pool: starts it, replaces it if it dies, and gives it up after several failed
starts.

slot ── launch ──► replica ── live, until it is DEAD ──► launch again ...
"""

import asyncio
import itertools
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

from ray.exceptions import RayError

from actors.messages import CacheStats
from actors.rollout.clocks import BusyReport, merged
from cluster.engine_actor import Launch, why_of
from cluster.health import FINAL, PoolConfig, State
from cluster.link import Changes
from cluster.replica import Live, Replica
from coa.concurrency import doubling
from coa.errors import EngineDied, NoEngine
from coa.planning.admission import Admission, Load

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""First and maximum pause between failed starts, and between retries after infrastructure failures."""


@dataclass(frozen=True, slots=True)
class EngineOutcome:
    """Outcome of one engine."""

    why: str
    """Reason of its end."""
    served: bool = False
    """Whether it was ever HEALTHY."""
    proved: bool = False
    """Whether it reported an event or was HEALTHY for long enough, so that its end does not count as a failed start."""


class Slot:
    """A place in the pool, held by one engine after another."""

    def __init__(self, number: int) -> None:
        self.number = number
        self._since = asyncio.get_running_loop().time()
        self.replica: Replica | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.given_up = False
        """Whether the limit of consecutive failures is reached."""
        self.leaving = False
        """Whether the slot is being removed: its engine is drained and not replaced."""
        self.ended = BusyReport(())
        """Merged last reports of the slot's ended engines."""

    def report(self) -> BusyReport:
        """Merged report of all the slot's engines, up to now or up to the current engine's last report."""
        replica, until = self.replica, asyncio.get_running_loop().time()
        if replica is not None and replica.state not in FINAL and replica.told_until is not None:
            until = replica.told_until
        told = merged([self.ended, *([replica.busy] if replica else [])])
        return replace(told, place_s=until - self._since)

    @property
    def coming(self) -> bool:
        """Whether the slot's engine waits for its first resources or is starting."""
        return self.replica is None or self.replica.state is State.STARTING

    def leave(self) -> None:
        """Marks the slot for removal: its engine gets no new episodes."""
        self.leaving = True
        if self.replica is not None:
            self.replica.draining = True

    @property
    def hopeless(self) -> bool:
        replica = self.replica
        well = replica is not None and replica.link.served and replica.state not in FINAL
        return self.given_up and not well


class Slots:
    """The slots of a pool. `say` is called with a line for each engine that ends; `changes` is notified whenever a
    waiting caller might be able to continue."""

    def __init__(
        self, launch: Launch, config: PoolConfig, places: int, changes: Changes, say: Callable[[str], None]
    ) -> None:
        """places: Maximum number of episodes on an engine at a time."""
        self._places = places
        self._launch, self._config, self._changes, self._say = launch, config, changes, say
        self._slots: dict[int, Slot] = {}
        self._retired: dict[int, BusyReport] = {}
        """Reports of removed slots."""
        self._numbers, self._starts = itertools.count(), itertools.count()
        self._name = uuid.uuid4().hex[:8]
        self._retried, self._cache = 0, CacheStats()
        self._ended_slowest_s = 0.0
        self._drains: set[asyncio.Task[None]] = set()
        self._live: Live | None = None
        self.waiting = False
        """Whether no engine is started for now, since learners have the memory that it would take."""
        self.broken: BaseException | None = None
        """NoEngine, or an unexpected exception of an engine; raised to callers that wait for an engine."""
        self.restarts = 0
        """Number of engines that served, died and were replaced."""

    def replicas(self) -> dict[int, Replica]:
        """Replicas by slot number."""
        return {slot.number: slot.replica for slot in self._slots.values() if slot.replica is not None}

    @property
    def coming(self) -> bool:
        """Whether an engine waits for its first resources or is starting."""
        return any(slot.coming for slot in self._slots.values())

    @property
    def starting(self) -> bool:
        """Whether the process of an engine is starting."""
        return any(replica.state is State.STARTING for replica in self.replicas().values())

    @property
    def retried(self) -> int:
        """Number of retried calls of tools and graders."""
        return self._retried + sum(replica.retried for replica in self.replicas().values())

    @property
    def cache(self) -> CacheStats:
        """Counters of the KV caches of all engines."""
        return sum((replica.cache for replica in self.replicas().values()), self._cache)

    def _slowest_s(self) -> float:
        """Longest time that a token has taken lately on an engine that is there, else on the last one that ended."""
        here = (one.link.health.slowest_s for one in self.replicas().values())
        return max(here, default=0.0) or self._ended_slowest_s

    def busy(self) -> list[BusyReport]:
        """Merged report of every slot so far, including removed ones, in order of slot numbers."""
        now = {number: slot.report() for number, slot in self._slots.items()}
        return [report for _, report in sorted({**self._retired, **now}.items())]

    def publish(self, live: Live) -> None:
        """Makes all current and later replicas load these weights."""
        self._live = live
        for replica in self.replicas().values():
            replica.publish(live)

    def add(self) -> int:
        slot = Slot(next(self._numbers))
        self._slots[slot.number] = slot
        slot.keeper = asyncio.ensure_future(self._keep(slot))
        slot.keeper.add_done_callback(self._on_end)
        return slot.number

    @property
    def staying(self) -> list[Slot]:
        """Slots that are not being removed."""
        return [slot for slot in self._slots.values() if not slot.leaving]

    def leave(self, number: int, handover_s: float) -> None:
        """Drains the engine in the background."""
        self._slots[number].leave()
        drain = asyncio.ensure_future(self.drain(number, handover_s))
        self._drains.add(drain)
        drain.add_done_callback(self._drains.discard)
        drain.add_done_callback(self._on_end)

    def least_needed(self) -> int:
        """Slot to remove first: engines that do not serve, then engines with the fewest others on their node (to free
        nodes), then the least loaded."""
        replicas = self.replicas().values()
        neighbours = Counter(one.link.engine.node for one in replicas if not one.draining)

        def need(slot: Slot) -> tuple[bool, int, Load, int]:
            if (replica := slot.replica) is None or not replica.serving:
                return False, 0, Load(0, 0), -slot.number
            return True, neighbours[replica.link.engine.node], replica.episodes.load, -slot.number

        return min(self.staying, key=need).number

    async def drain(self, number: int, handover_s: float | None = None) -> None:
        """Gives the engine no new episodes, waits until its episodes have ended or `handover_s` is over, and retires
        it; the remaining episodes continue on other engines."""
        slot = self._slots[number]
        slot.leave()
        if (replica := slot.replica) is not None:
            with suppress(TimeoutError):
                async with asyncio.timeout(handover_s):
                    await self._changes.wait_for(lambda: replica.link.over.done() or not replica.episodes.load.episodes)
        await self.retire(number)

    async def retire(self, number: int) -> None:
        """Ends the engine at once, and removes its slot."""
        slot = self._slots.pop(number, None)
        if slot is not None and slot.keeper is not None:
            slot.keeper.cancel()
            await asyncio.wait({slot.keeper})
            self._retired[number] = slot.report()

    def replace(self, number: int) -> None:
        """Ends the engine at once, and starts another in its slot."""
        if (replica := self._slots[number].replica) is not None:
            replica.replaced = True
            replica.link.died("it is to be replaced")

    async def stop(self) -> None:
        for drain in self._drains:
            drain.cancel()
        await asyncio.gather(*(self.retire(number) for number in list(self._slots)))

    def _on_end(self, keeper: "asyncio.Task[None]") -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self.broken = error
        self._changes.changed()

    async def _keep(self, slot: Slot) -> None:
        """Runs one engine after another in the slot; raises NoEngine if all slots are given up, and unexpected
        exceptions of engines."""
        failed = brief = 0
        pauses = doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S)
        while True:
            run = await self._run(slot)
            self._say(f"rollout engine {slot.number} {'died' if run.served else 'did not start'}: {run.why}")
            self.restarts += run.served
            if run.proved:
                failed, brief, slot.given_up = 0, 0, False
                pauses = doubling(FIRST_PAUSE_S, LONGEST_PAUSE_S)
                continue
            failed, brief = (0, brief + 1) if run.served else (failed + 1, brief)
            # After more than `deaths`, an episode that kills every engine has already failed, so the cause is something
            # else.
            slot.given_up = failed >= self._config.starts or brief > self._config.deaths
            if slot.given_up and all(other.hopeless for other in self._slots.values()):
                raise NoEngine(f"no rollout engine could be started, in {max(failed, brief)} tries: {run.why}")
            await asyncio.sleep(next(pauses))

    async def _run(self, slot: Slot) -> EngineOutcome:
        """Launches one engine and runs it to its end."""
        incarnation = f"{self._name}-{slot.number}-{next(self._starts)}"
        while True:
            await self._changes.wait_for(lambda: not self.waiting)
            try:
                engine = await asyncio.wait_for(self._launch(incarnation), self._config.place_s)
            except TimeoutError:
                return EngineOutcome(f"there was no place for it within {self._config.place_s:g} s")
            except (EngineDied, RayError) as error:
                return EngineOutcome(why_of(error))
            if not self.waiting:
                break
            engine.kill()  # meanwhile the learners have taken the memory that it would take
        admission = Admission.of(self._places)
        replica = slot.replica = Replica(
            engine, self._config.health, admission, self._changes, self._live, self._slowest_s()
        )
        try:
            await replica.live()
        finally:
            self._ended_slowest_s = replica.link.health.slowest_s or self._ended_slowest_s
            self._retried, replica.retried = self._retried + replica.retried, 0
            self._cache, replica.cache = self._cache + replica.cache, CacheStats()
            slot.ended = merged([slot.ended, replica.busy])
            replica.busy = BusyReport(())
            self._changes.changed()
        return EngineOutcome(
            replica.link.health.why, served=replica.link.served, proved=replica.proved or replica.dismissed
        )
