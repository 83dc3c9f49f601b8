"""Between the driver and the learners: orders one way, events the other. Samples pass as references.

driver --put, order--> [row of orders] --next_order--> each rank
driver <--next_event-- [events] <--emit-- rank 0

Where it dies, another one takes its place that knows nothing. Ranks meet an error or a void epoch then, and the group
starts again from its last checkpoint, which is a restart of the learners like any other.
"""

import asyncio
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.learner.step_report import StepReport
from actors.messages import Probe
from coa.learning.orders import Numbered, OrderRow, RankProgress, Stop, Train, orders_of

POLL_S = 20.0
"""A rank's question is answered within so long, if need be with nothing: it asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The learners are up, after the start of the run or of a restart, at the version of their last checkpoint."""

    version: int
    cursor: Any
    weights: Any
    """An `actors.weights.transport.Published`, or None where nobody wants them."""
    probes: tuple[Probe, ...]
    epoch: int
    """Grows with each start; batches of an older epoch are refused."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds of the first rank by `LearnerState`, from its start to here. Here and below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    version: int
    """The new one."""
    report: StepReport
    began: float
    ended: float
    """Wall clock of the step, without the wait for its batch."""
    waited: float
    """Seconds for which the learners waited for the batch, since the step before."""
    weights: Any
    probes: tuple[Probe, ...]
    spent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The model is written. The learners stay until `release`."""

    version: int
    spent: Mapping[str, float] = field(default_factory=dict)


Event = Started | Stepped | Finished


class TrajectoryBuffer:
    def __init__(self, *, ranks: int, steps: int, publish: bool, checkpoint_every: int) -> None:
        # Epochs of the one that it takes the place of are over: two alike would be taken for one.
        self._row = OrderRow(ranks, epoch=secrets.randbits(48))
        self._steps, self._publish, self._checkpoint_every = steps, publish, checkpoint_every
        self._progress = RankProgress()
        self._changed = asyncio.Condition()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._released = asyncio.Event()
        self._recorded = 0
        """The driver has recorded the steps up to this version."""

    # --- the driver's side --------------------------------------------------------------------------------------------

    async def put(self, train: Train, epoch: int) -> bool:
        """Puts a batch, with what it entails, behind the orders that there are; waits while another batch waits.
        False where the learners have restarted since: it is not taken."""
        async with self._changed:
            await self._changed.wait_for(lambda: epoch != self._row.epoch or self._row.has_room())
            orders = orders_of(train, steps=self._steps, publish=self._publish, checkpoint_every=self._checkpoint_every)
            taken = self._row.add(orders, epoch)
            self._changed.notify_all()
            return taken

    async def next_event(self) -> Event:
        return await self._events.get()

    async def recorded(self, version: int, epoch: int) -> None:
        """The driver has recorded the step that made this version."""
        async with self._changed:
            if epoch == self._row.epoch:
                self._recorded = version
            self._changed.notify_all()

    async def stalled(self, limit_s: float) -> str:
        """The ranks that have kept the others waiting for so long, in a sentence; empty if there are none."""
        return self._progress.stalled(self._row.training(), time.monotonic(), limit_s)

    async def release(self) -> None:
        """The driver needs nothing more of the learners."""
        self._released.set()

    # --- the ranks' side ----------------------------------------------------------------------------------------------

    async def begin(self, version: int) -> int:
        """The learners are (again) at `version`: orders given before are void. The new epoch."""
        async with self._changed:
            epoch, self._recorded = self._row.begin(), version
            self._progress.begin(time.monotonic())
            if version >= self._steps:
                self._row.add((Stop(),), epoch)
            self._changed.notify_all()
            return epoch

    async def next_order(self, rank: int, epoch: int, number: int) -> Numbered | None:
        """Order `number` with the rank's share of it, or None where there is none after POLL_S; raises VoidEpoch."""
        try:
            async with asyncio.timeout(POLL_S), self._changed:
                found = self._row.ask(rank, epoch, number)
                self._changed.notify_all()  # who asks makes room for the next batch
                while found is None:
                    await self._changed.wait()
                    found = self._row.ask(rank, epoch, number)
                self._progress.moved = time.monotonic()
                return self._row.for_rank(found, rank)
        except TimeoutError:
            return None

    async def has_recorded(self, version: int, epoch: int) -> bool:
        """Whether the driver has recorded that step, known within POLL_S; raises VoidEpoch."""
        try:
            async with asyncio.timeout(POLL_S), self._changed:
                self._row.require(epoch)
                while self._recorded < version:
                    await self._changed.wait()
                    self._row.require(epoch)
        except TimeoutError:
            return False
        return True

    async def emit(self, event: Event, epoch: int) -> None:
        """Tells the driver; raises VoidEpoch for a rank whose group has been started again elsewhere, such as one that
        was cut off: its steps are rolled back."""
        self._row.require(epoch)
        await self._events.put(event)

    async def hear(self, rank: int, epoch: int, passes: int) -> None:
        """A rank lives, and has begun so many forward passes."""
        if epoch == self._row.epoch:
            self._progress.hear(rank, passes, time.monotonic())

    async def released(self) -> bool:
        """Whether the driver needs nothing more, known within POLL_S."""
        try:
            async with asyncio.timeout(POLL_S):
                await self._released.wait()
        except TimeoutError:
            return False
        return True
