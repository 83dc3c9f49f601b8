"""Loads published weights into the workers of a vLLM engine, and checks them before the engine serves again.

    take     the transport brings the bytes into each worker, which checks their digests; requests continue meanwhile
    pause    no request is worked on; those under way are kept
    load     vLLM's own update, from the worker's memory
    check    version and number of this load come back from each worker, every published tensor reached a parameter,
             and no layer lacks elements
    resume   only then

A failure before the load (SyncError or a subclass) leaves the engine at its previous version. A later failure
(WeightsGone) leaves it paused until a complete load succeeds.
"""

import asyncio
import logging
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from actors.weights.manifest import Weights, some
from actors.weights.on_disk import published_file
from actors.weights.segment import SHARED_MEMORY
from actors.weights.store import Address
from actors.weights.transport import Published, ReceiveOrder, slowest_s
from actors.weights.transports import find_receiver
from coa import errors
from coa.errors import EngineDied, IncompleteWeights, StaleWeights, SyncError, WeightsGone, WrongVersion
from coa.json_object import Json

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

T = TypeVar("T")
ANSWER_S = 30.0
"""Maximum seconds for an answer of the engine's core that involves no loading and follows no long step."""
RECEIVE_S = 60.0
"""Maximum seconds for the bytes to arrive and be checked, on top of their transfer time at LOWEST_RATE."""
ACKNOWLEDGE_S = 10.0
_POLL_S, _POLL_SHARED_S = 0.005, 0.1
"""Between two questions whether the bytes have arrived. Where several workers share a model, each is a broadcast for
which the core ends the steps that it has begun ahead."""

logger = logging.getLogger(__name__)


class WeightLoader:
    """Loads weights into one engine's AsyncLLM. The caller must not overlap loads."""

    def __init__(
        self,
        llm: "AsyncLLM",
        *,
        clear_cache: bool,
        workers: int = 1,
        on_pause: Callable[[bool], None] = lambda paused: None,
        patience: Callable[[], float] = lambda: ANSWER_S,
    ) -> None:
        """clear_cache: whether requests under way recompute their KV cache under new weights. on_pause: called when
        generation stops (True) and continues (False). patience: maximum seconds for an answer of the core, which may
        have a step to end first."""
        self._llm, self._clear_cache, self._on_pause, self._patience = llm, clear_cache, on_pause, patience
        self._address = Address(f"{uuid.uuid4().hex[:12]}", own_node(), workers)
        self.syncs = 0
        """Number of loads so far; part of the cache salt, since the same version number may be published twice."""
        self.refusal: str | None = None
        """Reason why the engine's model can't take other weights; None if it can."""

    async def load(self, version: int, weights: Published | Weights) -> float:
        """Loads a version; returns the seconds for which no token was generated. Raises SyncError, or WeightsGone if
        the engine no longer has complete weights. `weights` in memory are a complete safetensors file."""
        if self.refusal is not None:
            raise StaleWeights(self.refusal)
        if isinstance(weights, Published):
            weights.manifest.check_version(version)
            return await self._load(weights)
        with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY, prefix="coa-weights-") as file:
            await asyncio.to_thread(weights.tofile, file.name)
            return await self._load(await asyncio.to_thread(published_file, version, Path(file.name)))

    async def _load(self, published: Published) -> float:
        taken = await self._take(published)
        began = time.monotonic()
        async with self._paused():
            await self.update(taken)
            await answered(self._llm.update_weight_version(str(taken.manifest.version)), self._patience())
        pause_s = time.monotonic() - began
        await self._call("coa_drop")
        # The weights are live even if this fails: an unacknowledged version is kept until its lease ends.
        with suppress(SyncError, TimeoutError):
            async with asyncio.timeout(ACKNOWLEDGE_S):
                await find_receiver(taken.transport).acknowledge(taken, self._address)
        return pause_s

    # --- before the pause ---------------------------------------------------------------------------------------------

    async def _take(self, published: Published) -> Published:
        """Brings the bytes into every worker by the first transport that works, and returns the `Published` of that
        transport."""
        while True:
            try:
                await self.receive(published)
                return published
            except SyncError as error:
                if published.fallback is None:
                    raise
                logger.warning("weights by %s: %s; taking %s", published.transport, error, published.fallback.transport)
                published = published.fallback

    async def receive(self, published: Published) -> None:
        """Brings the bytes into every worker, which checks them; raises SyncError."""
        prepared = await find_receiver(published.transport).prepare(published, self._address)
        order = ReceiveOrder(manifest=published.manifest, transport=published.transport, prepared=prepared)
        await self._call("coa_receive", order.pack())
        now = asyncio.get_running_loop().time
        began, limit_s = now(), RECEIVE_S + slowest_s(published.manifest.layout.nbytes)
        while None in (states := await self._call("coa_received")):
            if now() - began > limit_s:
                raise SyncError(f"version {published.manifest.version} has not arrived after {limit_s:.0f} s")
            await asyncio.sleep(_POLL_S if self._address.workers == 1 else _POLL_SHARED_S)
        for state in states:
            if state["failure"] is not None:
                kind, text = state["failure"]
                raise getattr(errors, kind, SyncError)(text)

    # --- vLLM's update ------------------------------------------------------------------------------------------------

    async def update(
        self,
        published: Published,
        *,
        perturbed: Sequence[str] = (),
        kept: Sequence[int] = (),
        only: Sequence[str] | None = None,
    ) -> dict[str, str]:
        """Loads the received weights and checks that every worker has loaded all of them; raises WeightsGone, or
        EngineDied if the core does not answer.

        Returns the parameter of vLLM's model that each tensor went into. `perturbed`, `kept` and `only` are those of
        `UpdateInfo`.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest
        from vllm.v1.engine.exceptions import EngineDeadError

        self.syncs += 1
        chosen = None if only is None else list(only)
        info = {"sync": self.syncs, "perturbed": list(perturbed), "kept": list(kept), "only": chosen}
        try:
            # No timeout here: the engine's owner kills the engine if the pause takes too long.
            await self._llm.start_weight_update()
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))
            await self._llm.finish_weight_update()
            reports = await self._call("coa_report")
            return check_reports(published, self.syncs, reports, whole=only is None)
        except (EngineDeadError, EngineDied, asyncio.CancelledError):
            raise
        except BaseException as error:  # vLLM has no exception type of its own for a worker's failure
            raise WeightsGone(f"{type(error).__name__}: {error}") from error

    @asynccontextmanager
    async def _paused(self) -> AsyncIterator[None]:
        """Pauses all requests for the body. If the body fails they stay paused, since it is unknown then which weights
        are loaded."""
        await answered(self._llm.pause_generation(mode="keep", clear_cache=self._clear_cache), self._patience())
        self._on_pause(True)
        yield
        await answered(self._llm.resume_generation(), self._patience())
        self._on_pause(False)

    async def _call(self, method: str, *args: object) -> list[Any]:
        """The answer of each worker; raises EngineDied if they do not answer."""
        return await answered(self._llm.collective_rpc(method, args=args), self._patience())


async def answered(call: Awaitable[T], limit_s: float = ANSWER_S) -> T:
    """The core's answer; raises EngineDied if there is none within the limit."""
    try:
        return await asyncio.wait_for(call, limit_s)
    except TimeoutError as error:
        raise EngineDied(f"its core gave no answer for {limit_s:g} s") from error


def check_reports(published: Published, sync: int, reports: Sequence[Json], *, whole: bool = True) -> dict[str, str]:
    """Raises SyncError if a worker does not run all of these weights; returns the parameter that each tensor went
    into."""
    version = published.manifest.version
    for worker, report in enumerate(reports):
        if (report["version"], report["sync"]) != (version, sync):
            raise WrongVersion(
                f"worker {worker} runs version {report['version']} of load {report['sync']}, "
                f"not version {version} of load {sync}"
            )
    took: dict[str, str] = {}
    for report in reports:
        took |= report["took"]
    if whole:
        published.manifest.check_names(took)
        if short := [layer for report in reports for layer in report["short"]]:
            raise IncompleteWeights(f"version {version}: layers without all of their weights: {some(short)}")
    return took


def own_node() -> str:
    """Name of this machine, the same as the learner's ranks use."""
    import ray

    return ray.get_runtime_context().get_node_id() if ray.is_initialized() else ""
