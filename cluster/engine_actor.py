"""A rollout engine on Ray: its placement group, its actor, the signs of progress that it shows while it starts, and the
classification of its errors.

Each engine has its own placement group, so that engines come and go one by one, and a pending group makes an autoscaler
add a node. Ray never restarts the actor: only the pool replaces engines.
"""

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

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

from actors.handles import Handle, kill, start_actor
from actors.messages import EpisodeId, EventBatch, Order, Publication, Result, SyncReport
from actors.rollout.clocks import BusyReport
from actors.signs import Signs
from actors.tools.remote import ToolClient
from cluster.health import Fault
from cluster.resources import PlacementConfig, Role
from coa.errors import EngineDied, SyncError, WeightsGone, WeightsLost
from coa.types import Floats, Tokens

LOOK_EVERY_S = 1.0
"""Seconds between two checks whether a placement group is placed."""

SIGNS_EVERY_S = 5.0


class Engine(Protocol):
    """One start of a rollout engine, as the pool sees it (`actors.messages`)."""

    incarnation: str
    node: str
    """Ray's id of the engine's node."""

    async def ready(self) -> int: ...
    async def signs(self) -> int:
        """Signs of progress that the start has shown so far."""
        ...

    async def start(self, orders: Sequence[Order], heard: int) -> None: ...
    async def cancel(self, ids: Sequence[EpisodeId]) -> int: ...
    async def events(self, after: int, wait_s: float) -> EventBatch: ...
    def take(self, ids: Sequence[EpisodeId]) -> Sequence[Awaitable[Result]]: ...
    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None: ...
    async def logprobs(self, token_ids: Tokens) -> Floats: ...
    async def busy(self) -> BusyReport: ...
    async def sync(self, publication: Publication) -> SyncReport: ...
    async def sleep(self) -> None: ...

    def kill(self) -> None:
        """Ends the process in any state, and releases its resources."""
        ...


Launch = Callable[[str], Awaitable[Engine]]
"""Starts an engine with the given incarnation, once there are resources for it."""


class EngineActor:
    """An Engine that runs as a Ray actor."""

    def __init__(self, handle: Handle, place: PlacementGroup, node: str, incarnation: str, tools: ToolClient) -> None:
        """tools: they refuse the engine's calls once it has ended."""
        self._handle, self._place, self._tools = handle, place, tools
        self.node, self.incarnation = node, incarnation

    async def ready(self) -> int:
        return await self._handle.ready.remote()

    async def signs(self) -> int:
        return await asyncio.to_thread(signs_of, self.incarnation)

    async def start(self, orders: Sequence[Order], heard: int) -> None:
        await self._handle.start.remote(orders, heard)

    async def cancel(self, ids: Sequence[EpisodeId]) -> int:
        return await self._handle.cancel.remote(ids)

    async def events(self, after: int, wait_s: float) -> EventBatch:
        return await self._handle.events.remote(after, wait_s)

    def take(self, ids: Sequence[EpisodeId]) -> Sequence[Awaitable[Result]]:
        """One reference per result, owned by this process, so that results outlive the engine."""
        taken = self._handle.take.options(num_returns=len(ids)).remote(ids)
        return [self._only(taken)] if len(ids) == 1 else taken

    @staticmethod
    async def _only(taken: Awaitable[Sequence[Result]]) -> Result:
        [result] = await taken
        return result

    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None:
        await self._handle.acknowledge.remote(ids)

    async def logprobs(self, token_ids: Tokens) -> Floats:
        return await self._handle.logprobs.remote(token_ids)

    async def busy(self) -> BusyReport:
        return await self._handle.busy.remote()

    async def sync(self, publication: Publication) -> SyncReport:
        # Weights in the object store are fetched for an argument, not for what is inside of one.
        return await self._handle.sync.remote(publication.version, publication.weights, publication.probes)

    async def sleep(self) -> None:
        await self._handle.sleep.remote()

    def kill(self) -> None:
        # The process may only be suspended and could continue later.
        self._tools.refuse([self.incarnation])
        kill(self._handle)
        remove_placement_group(self._place)


def launcher(
    engine: type, placement: PlacementConfig, tools: ToolClient, *arguments: object, **settings: object
) -> Launch:
    """Returns a function that launches actors of the class `engine` with these arguments, an `incarnation` and the
    `tools`."""
    bundle = {"CPU": placement.engine_cpus, "GPU": placement.engine_gpus}
    bundle = {name: amount for name, amount in bundle.items() if amount}

    async def launch(incarnation: str) -> Engine:
        place = placement_group([bundle], name=incarnation, **placement.bundle_on(Role.engine))
        try:
            while not await asyncio.to_thread(place.wait, LOOK_EVERY_S):
                pass
            [node] = (await asyncio.to_thread(placement_group_table, place))["bundles_to_node_id"].values()
            options = {
                "num_cpus": placement.engine_cpus,
                "num_gpus": placement.engine_gpus,
                "max_concurrency": 10_000,
                "scheduling_strategy": PlacementGroupSchedulingStrategy(place),
            }
            kind = with_signs(engine)
            handle = start_actor(kind, options, *arguments, incarnation=incarnation, tools=tools, **settings)
        except BaseException:
            remove_placement_group(place)
            raise
        return EngineActor(handle, place, node, incarnation, tools)

    return launch


def fault_of(error: BaseException) -> Fault | None:
    """Maps an exception of an engine's call to a Fault; None for an unexpected exception, or an error that is not the
    engine's.

    An actor that was killed for its memory use raises OutOfMemoryError, which is not a RayActorError.
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
        # vLLM's exception is recognized by name, since importing vLLM takes seconds and the driver does not need it
        # otherwise.
        case _ if "EngineDeadError" in {kind.__name__ for one in (error, cause) for kind in type(one).__mro__}:
            return Fault.GONE
        case _ if cause is not None and cause is not error:
            return fault_of(cause)
        # Errors of a node, of the object store or of Ray itself: in any case the engine can't be reached.
        case RayError() if not isinstance(error, RayTaskError):
            return Fault.GONE
        case _:
            return None


def why_of(error: BaseException) -> str:
    """One line that describes the failure: "OutOfMemoryError: Task was killed due to the node running low on
    memory"."""
    if isinstance(error, RayTaskError) and isinstance(error.cause, Exception):
        return why_of(error.cause)  # a RayTaskError's first line only names the call
    text = str(error).strip().split("\n")
    return f"{type(error).__name__}: {text[0]}" if text[0] else type(error).__name__


def signs_key(incarnation: str) -> bytes:
    return f"coa-start-{incarnation}".encode()


def with_signs(kind: type, every_s: float = SIGNS_EVERY_S) -> type:
    """A class of actors like `kind` that shows signs of progress, one in `every_s` seconds, until its `ready` has
    returned: while an actor is being made it answers no call, so a thread of its process puts them into Ray's store of
    keys and values. It takes the argument `incarnation`."""

    class Starting(kind):
        def __init__(self, *arguments: object, incarnation: str, **settings: object) -> None:
            self._is_up = threading.Event()
            thread = threading.Thread(
                target=_show_signs, args=(signs_key(incarnation), self._is_up, every_s), daemon=True
            )
            thread.start()
            super().__init__(*arguments, incarnation=incarnation, **settings)

        async def ready(self, *arguments: object) -> object:
            try:
                return await super().ready(*arguments)
            finally:
                self._is_up.set()

    Starting.__name__, Starting.__qualname__ = kind.__name__, kind.__qualname__
    return Starting


def _show_signs(key: bytes, is_up: threading.Event, every_s: float) -> None:
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_put

    signs = Signs((1, 2))  # Ray sends what its processes print to files
    while not is_up.wait(every_s):
        _internal_kv_put(key, str(signs.count(os.getpid())).encode(), overwrite=True)
    _internal_kv_del(key)


def signs_of(incarnation: str) -> int:
    """Number of signs so far; 0 before the first."""
    from ray.experimental.internal_kv import _internal_kv_get

    return int(_internal_kv_get(signs_key(incarnation)) or 0)
