"""Keeps an engine in each slot of a pool: started, replaced where it dies, and given up after so many tries.

slot ── launch ──► replica ── live, until it is DEAD ──► launch again ...
"""

import asyncio
import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from ray.exceptions import RayError

from actors.rollout.clocks import BusyReport, merged
from cluster.engine_actor import Launch, why_of
from cluster.health import FINAL, PoolConfig, State
from cluster.link import Changes
from cluster.replica import Live, Replica
from coa.concurrency import doubling
from coa.errors import EngineDied, NoEngine

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""Between two starts that failed, and between attempts at what meets infrastructure failures."""


@dataclass(frozen=True, slots=True)
class Run:
    """What became of one engine."""

    why: str
    """Why it ended."""
    served: bool = False
    """Whether it was ever well."""
    proved: bool = False
    """Whether it did something, or was well for long enough, so that its end says nothing of the next one."""


class Slot:
    """A place in the pool, for one engine after another."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.replica: Replica | None = None
        self.keeper: asyncio.Task[None] | None = None
        self.given_up = False
        """Whether as many starts failed in a row as may."""
        self.ended = BusyReport(())
        """What its engines did that have ended, as far as they have told."""

    @property
    def coming(self) -> bool:
        """Whether its engine waits for its first place, or comes up."""
        return self.replica is None or self.replica.state is State.STARTING

    @property
    def hopeless(self) -> bool:
        replica = self.replica
        well = replica is not None and replica.link.served and replica.state not in FINAL
        return self.given_up and not well


class Slots:
    """`say` is told of engines that end; `changes` whenever that may let somebody go on."""

    def __init__(self, launch: Launch, config: PoolConfig, changes: Changes, say: Callable[[str], None]) -> None:
        self._launch, self._config, self._changes, self._say = launch, config, changes, say
        self._slots: dict[int, Slot] = {}
        self._numbers, self._starts = itertools.count(), itertools.count()
        self._name = uuid.uuid4().hex[:8]
        self._retried = 0
        self._live: Live | None = None
        self.broken: BaseException | None = None
        """Why there will be no engine, or a defect in one: whoever wants an engine is told."""
        self.restarts = 0
        """Engines that served, died, and were replaced."""

    def replicas(self) -> dict[int, Replica]:
        """By their slots."""
        return {slot.number: slot.replica for slot in self._slots.values() if slot.replica is not None}

    @property
    def coming(self) -> bool:
        """Whether there may soon be one more."""
        return any(slot.coming for slot in self._slots.values())

    @property
    def retried(self) -> int:
        """Calls of tools and graders that engines tried again."""
        return self._retried + sum(replica.retried for replica in self.replicas().values())

    def busy(self) -> list[BusyReport]:
        """Of each slot, over all its engines, as far as they have told."""
        slots = self._slots.values()
        return [merged([slot.ended, *([slot.replica.busy] if slot.replica else [])]) for slot in slots]

    def publish(self, live: Live) -> None:
        """Replicas load these weights, and so do those that come later."""
        self._live = live
        for replica in self.replicas().values():
            replica.publish(live)

    def add(self) -> int:
        slot = Slot(next(self._numbers))
        self._slots[slot.number] = slot
        slot.keeper = asyncio.ensure_future(self._keep(slot))
        slot.keeper.add_done_callback(self._ended)
        return slot.number

    async def drain(self, number: int) -> None:
        """Gives the engine nothing new, waits until its episodes have ended, and retires it."""
        if (replica := self._slots[number].replica) is not None:
            replica.draining = True
            await self._changes.wait_for(lambda: replica.link.over.done() or not replica.flights.load[0])
        await self.retire(number)

    async def retire(self, number: int) -> None:
        """Ends the engine for good, at once."""
        keeper = self._slots.pop(number).keeper
        assert keeper is not None
        keeper.cancel()
        await asyncio.wait({keeper})

    def replace(self, number: int) -> None:
        """Ends the engine at once, and starts another in its place."""
        if (replica := self._slots[number].replica) is not None:
            replica.replaced = True
            replica.link.died("it is to be replaced")

    async def stop(self) -> None:
        await asyncio.gather(*(self.retire(number) for number in list(self._slots)))

    def _ended(self, keeper: "asyncio.Task[None]") -> None:
        if not keeper.cancelled() and (error := keeper.exception()) is not None:
            self.broken = error
        self._changes.changed()

    async def _keep(self, slot: Slot) -> None:
        """One engine after another; raises NoEngine where no slot has hope left, and what is a defect."""
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
            # With more than `deaths`, an episode that ends every engine has failed for good, and it was not that.
            slot.given_up = failed >= self._config.starts or brief > self._config.deaths
            if slot.given_up and all(other.hopeless for other in self._slots.values()):
                raise NoEngine(f"no rollout engine could be started, in {max(failed, brief)} tries: {run.why}")
            await asyncio.sleep(next(pauses))

    async def _run(self, slot: Slot) -> Run:
        """One engine from its place to its end."""
        incarnation = f"{self._name}-{slot.number}-{next(self._starts)}"
        try:
            engine = await asyncio.wait_for(self._launch(incarnation), self._config.place_s)
        except TimeoutError:
            return Run(f"there was no place for it within {self._config.place_s:g} s")
        except (EngineDied, RayError) as error:
            return Run(why_of(error))
        replica = slot.replica = Replica(engine, self._config.health, self._changes, self._live)
        try:
            await replica.live()
        finally:
            self._retried, replica.retried = self._retried + replica.retried, 0
            slot.ended = merged([slot.ended, replica.busy])
            replica.busy = BusyReport(())
            self._changes.changed()
        return Run(replica.link.health.why, served=replica.link.served, proved=replica.proved or replica.dismissed)
