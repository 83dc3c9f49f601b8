"""Between the driver and the learners: batches one way, versions the other. It holds references, never arrays.

driver --put--> [plans] --lease--> rank 0;  share --> every rank
driver <--next_event-- [events] <--tell-- rank 0
"""

import asyncio
from dataclasses import dataclass, field
from typing import Any

from actors.engine import Probe
from actors.learner import StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One batch: for each rank, references to tuples of samples."""

    version: int
    """The version that it is trained at; it makes version + 1."""
    shares: tuple[tuple[Any, ...], ...]
    cursor: int
    """Where the stream of tasks or demonstrations stood when this batch was formed: kept with the checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """The learners are up, after the start of the run or of a restart, at the version of their last checkpoint."""

    version: int
    cursor: int
    weights: Any
    """Reference of `coa.weights.Weights`, or None where nobody wants them."""
    probes: tuple[Probe, ...]
    epoch: int = 0
    """Grows with each start; plans of an older epoch are refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    version: int
    """The new one."""
    report: StepReport
    began: float
    ended: float
    """Wall clock of the step, without the wait for its batch."""
    waited: float
    """Seconds for which the learners waited for the batch."""
    weights: Any
    probes: tuple[Probe, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """The model is written."""

    version: int


Event = Started | Stepped | Finished


@dataclass
class _Desk:
    plans: asyncio.Queue[Plan] = field(default_factory=lambda: asyncio.Queue(maxsize=1))
    leased: Plan | None = None


class TrajectoryBuffer:
    """A plain class; on Ray an async actor."""

    def __init__(self) -> None:
        self._desk = _Desk()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._epoch = 0

    async def put(self, plan: Plan, epoch: int) -> bool:
        """Waits while another plan waits. False where the learners have restarted since: the plan is not taken."""
        desk = self._desk
        if epoch != self._epoch:
            return False
        await desk.plans.put(plan)
        return desk is self._desk

    async def next_event(self) -> Event:
        return await self._events.get()

    async def lease(self) -> int:
        """The version of the next plan, once there is one. For rank 0, which tells the others."""
        desk = self._desk
        desk.leased = await desk.plans.get()
        return desk.leased.version

    async def share(self, rank: int) -> tuple[Any, ...]:
        """A rank's references of the leased plan."""
        assert self._desk.leased is not None, "lease comes before share"
        return self._desk.leased.shares[rank]

    async def cursor(self) -> int:
        assert self._desk.leased is not None, "lease comes before cursor"
        return self._desk.leased.cursor

    async def start(self, version: int, cursor: int, weights: list[Any], probes: tuple[Probe, ...]) -> None:
        """Learners are (again) at `version`: plans made before are void. `weights` holds one reference or none."""
        self._desk = _Desk()
        self._epoch += 1
        await self._events.put(
            Started(
                version=version,
                cursor=cursor,
                weights=weights[0] if weights else None,
                probes=probes,
                epoch=self._epoch,
            )
        )

    async def tell(self, event: Stepped | Finished) -> None:
        await self._events.put(event)
