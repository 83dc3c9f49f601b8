"""A rollout engine on Ray: its place, its actor, and what its calls raise.

Each engine has a placement group of its own, so that replicas come and go one by one and a pending one makes an
autoscaler add a node. Ray never restarts the actor: the pool alone replaces engines.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
)
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.messages import EpisodeId, EpisodeOrder, EventBatch, SyncReport
from actors.rollout.clocks import BusyReport
from actors.tools.remote import RemoteExecutor
from cluster.health import Fault
from cluster.resources import PlacementConfig, Role
from coa.errors import EngineDied, SyncError, WeightsGone, WeightsLost
from coa.types import Floats, Scored, Tokens

LOOK_EVERY_S = 1.0
"""Between two looks at whether a placement group has its place."""


class Engine(Protocol):
    """One start of a rollout engine, as the pool sees it (`actors.messages`)."""

    incarnation: str
    node: str
    """Ray's id of the node it is on."""

    async def ready(self) -> int: ...
    async def start(self, orders: Sequence[EpisodeOrder], heard: int) -> None: ...
    async def cancel(self, ids: Sequence[EpisodeId]) -> int: ...
    async def events(self, after: int, wait_s: float) -> EventBatch: ...
    def take(self, ids: Sequence[EpisodeId]) -> Sequence[Awaitable[Scored]]: ...
    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None: ...
    async def logprobs(self, token_ids: Tokens) -> Floats: ...
    async def busy(self) -> BusyReport: ...
    async def sync(self, version: int, *weights: Any) -> SyncReport: ...
    async def sleep(self) -> None: ...

    def kill(self) -> None:
        """Ends the process, however it is, and gives its place back."""
        ...


Launch = Callable[[str], Awaitable[Engine]]
"""Starts an engine with the incarnation that it is told, once there is a place for it."""


class EngineActor:
    """An Engine that is an actor."""

    def __init__(
        self, handle: Any, place: PlacementGroup, node: str, incarnation: str, executors: Sequence[Any]
    ) -> None:
        """executors: handles of those that refuse its tool calls once it has ended."""
        self._handle, self._place, self._executors = handle, place, executors
        self.node, self.incarnation = node, incarnation

    async def ready(self) -> int:
        return await self._handle.ready.remote()

    async def start(self, orders: Sequence[EpisodeOrder], heard: int) -> None:
        await self._handle.start.remote(orders, heard)

    async def cancel(self, ids: Sequence[EpisodeId]) -> int:
        return await self._handle.cancel.remote(ids)

    async def events(self, after: int, wait_s: float) -> EventBatch:
        return await self._handle.events.remote(after, wait_s)

    def take(self, ids: Sequence[EpisodeId]) -> Sequence[Awaitable[Scored]]:
        """A reference each, owned by this process: they stay when the engine goes."""
        taken = self._handle.take.options(num_returns=len(ids)).remote(ids)
        return [self._only(taken)] if len(ids) == 1 else taken

    @staticmethod
    async def _only(taken: Any) -> Scored:
        [scored] = await taken
        return scored

    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None:
        await self._handle.acknowledge.remote(ids)

    async def logprobs(self, token_ids: Tokens) -> Floats:
        return await self._handle.logprobs.remote(token_ids)

    async def busy(self) -> BusyReport:
        return await self._handle.busy.remote()

    async def sync(self, version: int, *weights: Any) -> SyncReport:
        return await self._handle.sync.remote(version, *weights)

    async def sleep(self) -> None:
        await self._handle.sleep.remote()

    def kill(self) -> None:
        # It may only be stopped, and wake up.
        for executor in self._executors:
            executor.refuse.remote([self.incarnation])
        ray.kill(self._handle)
        remove_placement_group(self._place)


def launcher(
    engine: Callable[..., Any], placement: PlacementConfig, executors: Sequence[Any], *arguments: Any, **settings: Any
) -> Launch:
    """Launches actors of the class `engine`, with these arguments, an `incarnation` and `executors` to call."""
    bundle = {"CPU": placement.engine_cpus, "GPU": placement.engine_gpus}
    bundle = {name: amount for name, amount in bundle.items() if amount}

    async def launch(incarnation: str) -> Engine:
        place = placement_group([bundle], name=incarnation, **placement.bundle_on(Role.engine))
        try:
            while not await asyncio.to_thread(place.wait, LOOK_EVERY_S):
                pass
            [node] = (await asyncio.to_thread(placement_group_table, place))["bundles_to_node_id"].values()
            actor: Any = ray.remote(engine)
            handle = actor.options(
                num_cpus=placement.engine_cpus,
                num_gpus=placement.engine_gpus,
                max_concurrency=10_000,
                max_restarts=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(place),
            ).remote(
                *arguments,
                incarnation=incarnation,
                executors=[RemoteExecutor(executor) for executor in executors],
                **settings,
            )
        except BaseException:
            remove_placement_group(place)
            raise
        return EngineActor(handle, place, node, incarnation, executors)

    return launch


def fault_of(error: BaseException) -> Fault | None:
    """What an engine's call raised, for its health; None for what is a defect, or none of an engine's business.

    An actor that was ended for its memory raises OutOfMemoryError, which is no RayActorError.
    """
    cause = getattr(error, "cause", None)
    match error:
        case ActorUnavailableError():
            return Fault.UNREACHABLE
        case RayActorError() | OutOfMemoryError() | EngineDied():
            return Fault.GONE
        case WeightsGone():
            return Fault.HALFWAY
        case WeightsLost() | ObjectLostError():
            return Fault.NO_WEIGHTS
        case SyncError():
            return Fault.REFUSED
        # vLLM's own, by its name: importing vLLM takes seconds, and the driver has no other use for it.
        case _ if "EngineDeadError" in {kind.__name__ for one in (error, cause) for kind in type(one).__mro__}:
            return Fault.GONE
        case _ if cause is not None and cause is not error:
            return fault_of(cause)
        # Of a node, of the object store, of Ray itself: whatever is broken, the engine can't be reached as it should.
        case RayError() if not isinstance(error, RayTaskError):
            return Fault.GONE
        case _:
            return None


def why_of(error: BaseException) -> str:
    """One line that names the failure: "OutOfMemoryError: Task was killed due to the node running low on memory"."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return why_of(error.cause)  # its own first line says where it was raised
    text = str(error).strip().split("\n")
    return f"{type(error).__name__}: {text[0]}" if text[0] else type(error).__name__
