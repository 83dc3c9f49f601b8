"""Between the driver and the learners: batches one way, versions the other. Samples and weights pass as references.

driver --put--> [plans] --share--> each rank
driver <--next_event-- [events] <--tell-- rank 0
"""

import asyncio
from dataclasses import dataclass
from typing import Any

from actors.engine import Probe
from actors.step_report import StepReport


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
    epoch: int
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
    """The model is written. The learners stay until `release`: what they have put into the object store is theirs."""

    version: int


Event = Started | Stepped | Finished


class TrajectoryBuffer:
    """A plain class; on Ray an async actor."""

    def __init__(self) -> None:
        self._plans: dict[int, Plan] = {}
        self._asked = -1
        """The newest version of which some rank has asked for its share."""
        self._epoch = 0
        self._changed = asyncio.Condition()
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._released = asyncio.Event()

    async def put(self, plan: Plan, epoch: int) -> bool:
        """Waits while another plan waits. False where the learners have restarted since: the plan is not taken."""
        async with self._changed:
            await self._changed.wait_for(lambda: epoch != self._epoch or plan.version <= self._asked + 1)
            if epoch != self._epoch:
                return False
            self._plans[plan.version] = plan
            self._changed.notify_all()
            return True

    async def next_event(self) -> Event:
        return await self._events.get()

    async def share(self, rank: int, version: int) -> tuple[tuple[Any, ...], int]:
        """A rank's references of the plan of `version`, once there is one, and the plan's cursor.

        Ranks agree on their batch since the version names it, and none waits in a collective for it.
        """
        async with self._changed:
            self._asked = max(self._asked, version)
            for old in [known for known in self._plans if known < version]:
                del self._plans[old]
            self._changed.notify_all()
            await self._changed.wait_for(lambda: version in self._plans)
            plan = self._plans[version]
            return plan.shares[rank], plan.cursor

    async def start(self, version: int, cursor: int, weights: list[Any], probes: tuple[Probe, ...]) -> None:
        """Learners are (again) at `version`: plans made before are void. `weights` holds one reference or none."""
        async with self._changed:
            self._plans.clear()
            self._asked = version - 1
            self._epoch += 1
            self._changed.notify_all()
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

    async def release(self) -> None:
        """The driver needs nothing more of the learners."""
        self._released.set()

    async def released(self) -> None:
        await self._released.wait()
