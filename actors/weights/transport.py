"""Weight transports, from ranks to the workers of an engine: their common interface.

    ranks         sender.send(parts, ...)                 collective; returns a `Published` on rank 0
    driver        passes the `Published` on to the engines
    engine        receiver.prepare(published)             in the engine's actor: the data that its workers need
    its workers   receiver.receive(manifest, prepared)   the flattened model, as bytes that are not checked yet

`actors.weights.transports` lists the transports by name; recipes select one with `rl.weights.transport`.
"""

import pickle
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.weights.manifest import Manifest
from actors.weights.store import Address

if TYPE_CHECKING:
    from actors.weights.parts import ModelParts
    from actors.weights.ranks import Ranks
    from actors.weights.store import WeightStore

BUCKET_BYTES = 64 * 2**20
"""Size of the parts in which weights are moved and checked. A rank needs memory for two."""
LOWEST_RATE = 0.5e9
"""Minimum bytes per second: slower transfers and loads are given up."""


def slowest_s(nbytes: int) -> float:
    """Seconds that `nbytes` of weights take at LOWEST_RATE."""
    return nbytes / LOWEST_RATE


@dataclass(frozen=True)
class WeightsConfig:
    """How new weights get from learners to engines."""

    transport: str = "host"
    """host: through shared memory on a node, and through Ray's object store between nodes. ipc: engines on the GPU of
    the only learner rank copy the weights from its memory (CUDA IPC; on a CPU, shared memory); others use host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version of the weights, ready to be taken; small, and the same for every engine."""

    manifest: Manifest
    transport: str
    place: Any
    """Data by which the transport's receiver finds the weights."""
    fallback: "Published | None" = None
    """The same weights by another transport, for engines that miss this one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveOrder:
    """Message from the engine's actor to its workers."""

    manifest: Manifest
    transport: str
    prepared: object
    """Result of the transport's `prepare`, without anything that only the actor can use, such as handles of other
    actors."""

    def pack(self) -> bytes:
        return pickle.dumps(self)


class Sender(Protocol):
    """The ranks' side; built on every rank from its `Ranks` and the run's `WeightStore`. A subclass only has to define
    `send`."""

    def send(self, parts: "ModelParts", version: int, name: str) -> Published | None:
        """Publishes the model of these `ModelParts`; collective. `name` is unique per call. Returns None on all ranks
        but the first."""
        ...

    def withdraw(self) -> None:
        """Stops offering weights from the ranks' own memory; called before the model changes."""

    def check(self) -> None:
        """Raises errors of background work; called repeatedly while the rank waits for an order."""


class Receiver(Protocol):
    """The engines' side."""

    async def prepare(self, published: Published, address: Address) -> object:
        """Runs in the engine's actor and must not block it. The result must be picklable and is sent to each worker.
        Raises SyncError."""
        ...

    def receive(self, manifest: Manifest, prepared: Any, worker: int) -> AbstractContextManager[NDArray[np.uint8]]:
        """Runs in worker number `worker`, in a separate thread. Yields the flattened model, valid while the context
        lasts. Raises SyncError."""
        ...

    async def acknowledge(self, published: Published, address: Address) -> None:
        """Called when the engine has loaded the weights."""
        ...


class MakeSender(Protocol):
    def __call__(self, ranks: "Ranks", store: "WeightStore") -> Sender:
        """`store`: storage of the run's weights."""
        ...


@dataclass(frozen=True, slots=True)
class WeightTransport:
    sender: MakeSender | None
    """None if the transport can only read weights."""
    receiver: Receiver
