"""The buffer between the driver and the learners: orders go one way, events the other. Samples pass as references.

driver --put, order--> [row of orders] --next_order--> each rank
driver <--next_event-- [events] <--emit-- rank 0

If the buffer's actor dies, an empty one replaces it. The ranks then get an error or a void epoch, and the group
restarts from its last checkpoint like after any other failure.
"""

import asyncio
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from actors.learner.step_report import StepReport
from actors.messages import Probe
from actors.weights.transport import Published
from coa.learning.orders import Numbered, OrderRow, RankProgress, Stop, Train, orders_of
from coa.learning.task_stream import Cursor
from coa.time_accounts import LearnerState

POLL_S = 20.0
"""Maximum seconds until a rank's poll is answered, if necessary with nothing; the rank then polls again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The learners have started or restarted, at the version of their last checkpoint."""

    version: int
    cursor: int | Cursor
    weights: Published | None
    """None if the job publishes no weights."""
    probes: tuple[Probe, ...]
    epoch: int
    """Increases with each start; batches of an older epoch are refused."""
    parity: str
    """How training computes, and how near to the model's own pass that is (`actors.learner.model.parity`)."""
    shares_prefixes: bool
    """Whether tokens with which samples begin alike are computed once."""
    spent: Mapping[str, float] = field(default_factory=dict)
    """Seconds of rank 0 by `LearnerState`, from its start to this event; likewise in the events below."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    version: int
    """Weight version after the step."""
    report: StepReport
    began: float
    ended: float
    """`began` and `ended`: wall-clock times of the step, without the wait for its batch."""
    waited: float
    """Seconds for which the learners waited for the batch since the previous step."""
    weights: Published | None
    probes: tuple[Probe, ...]
    spent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The final model is written. The learners stay until `release`."""

    version: int
    spent: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A checkpoint is whole, and Ray Train has recorded it."""

    version: int
    write_s: float
    """Seconds for which the slowest rank wrote its files."""
    commit_s: float
    """Wall-clock seconds from the copies in memory until the record."""
    size: int
    """Bytes of all ranks' files."""


Event = Started | Stepped | Committed | Finished
BEGAN = "began"
"""Key of the wall clock at which a rank's copy was in memory, in what it reports to Ray Train with its checkpoint."""


class TrajectoryBuffer:
    def __init__(
        self,
        *,
        ranks: int,
        steps: int,
        publish: bool,
        checkpoint_every: int,
        export_every: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # Epochs of the one that it takes the place of are over: two alike would be taken for one.
        self._row = OrderRow(ranks, epoch=secrets.randbits(48))
        self._steps, self._clock = steps, clock
        self._orders_of = partial(
            orders_of, steps=steps, publish=publish, checkpoint_every=checkpoint_every, export_every=export_every
        )
        self._progress = RankProgress()
        self._changed = asyncio.Condition()
        self._events: asyncio.Queue[tuple[Event, float]] = asyncio.Queue()
        """Events with the times at which they came."""
        self._untaken_s = 0.0
        """Seconds for which the learners had started before the driver took notice, up to their next step."""
        self._released = asyncio.Event()
        self._recorded = 0
        """Version up to which the driver has recorded the steps."""

    # --- the driver's side --------------------------------------------------------------------------------------------

    async def put(self, train: Train, epoch: int) -> bool:
        """Appends a batch and the orders that follow from it; waits while another batch is queued. Returns False,
        without taking the batch, if the learners have restarted since `epoch`."""
        async with self._changed:
            await self._changed.wait_for(lambda: epoch != self._row.epoch or self._row.has_room())
            taken = self._row.add(self._orders_of(train), epoch)
            self._changed.notify_all()
            return taken

    async def checkpoint(self) -> int | None:
        """Has learners write a checkpoint after their present batch; returns its version, None if there is nothing new
        to write."""
        async with self._changed:
            version = self._row.checkpoint()
            self._changed.notify_all()
            return version

    async def next_event(self) -> Event:
        """The next event, as if learners had started only when the driver takes their start: until then, no batch could
        come."""
        event, came = await self._events.get()
        match event:
            case Started():
                self._untaken_s = self._clock() - came
                samples = event.spent.get(LearnerState.SAMPLES, 0.0) + self._untaken_s
                return replace(event, spent={**event.spent, LearnerState.SAMPLES: samples})
            case Stepped():
                untaken_s, self._untaken_s = self._untaken_s, 0.0
                return replace(event, waited=max(0.0, event.waited - untaken_s))
            case _:
                return event

    async def recorded(self, version: int, epoch: int) -> None:
        """Tells that the driver has recorded the step that made this version."""
        async with self._changed:
            if epoch == self._row.epoch:
                self._recorded = version
            self._changed.notify_all()

    async def stalled(self, limit_s: float) -> str:
        """The ranks that have kept the others waiting for so long, in a sentence; empty if there are none."""
        return self._progress.stalled(self._row.training(), time.monotonic(), limit_s)

    async def gone(self) -> None:
        """The ranks have ended, and others may begin."""
        self._progress.begin(time.monotonic())

    async def release(self) -> None:
        """Lets the learners end: the driver needs nothing more from them."""
        self._released.set()

    async def _tell(self, event: Event) -> None:
        await self._events.put((event, self._clock()))

    # --- Ray Train's side ---------------------------------------------------------------------------------------------

    async def committed(self, checkpoint: Committed) -> None:
        """Ray Train has committed a checkpoint."""
        await self._tell(checkpoint)

    # --- the ranks' side ----------------------------------------------------------------------------------------------

    async def begin(self, version: int) -> int:
        """Starts an epoch for learners at `version`, which voids all earlier orders; returns the epoch."""
        async with self._changed:
            epoch, self._recorded = self._row.begin(), version
            self._progress.begin(time.monotonic())
            if version >= self._steps:
                self._row.add((Stop(),), epoch)
            self._changed.notify_all()
            return epoch

    async def next_order(self, rank: int, epoch: int, number: int) -> Numbered | None:
        """Order `number` with the rank's share, or None if there is none within POLL_S; raises VoidEpoch."""
        try:
            async with asyncio.timeout(POLL_S), self._changed:
                found = self._row.ask(rank, epoch, number)
                self._changed.notify_all()  # a rank's request makes room for the next batch
                while found is None:
                    await self._changed.wait()
                    found = self._row.ask(rank, epoch, number)
                self._progress.moved = time.monotonic()
                return self._row.for_rank(found, rank)
        except TimeoutError:
            return None

    async def has_recorded(self, version: int, epoch: int) -> bool:
        """Whether the driver records that step within POLL_S; raises VoidEpoch."""
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
        await self._tell(event)

    async def heartbeat(self, rank: int, epoch: int, passes: int) -> None:
        """A rank lives, and has begun so many forward passes."""
        if epoch == self._row.epoch:
            self._progress.heartbeat(rank, passes, time.monotonic())

    async def released(self) -> bool:
        """Whether the driver releases the learners within POLL_S."""
        try:
            async with asyncio.timeout(POLL_S):
                await self._released.wait()
        except TimeoutError:
            return False
        return True
