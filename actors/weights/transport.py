"""How weights get from ranks to the workers of an engine: what every way has in common.

    ranks         sender.send(parts, ...)                 collective; rank 0 has a `Published` then
    driver        passes the `Published` on to the engines
    engine        receiver.prepare(published)             in the engine's actor: what its workers need
    its workers   receiver.receive(manifest, prepared)   the flattened model, as bytes that nobody has checked yet

A way has a name in `actors.weights.transports`, which recipes give as `rl.weights.transport`.
"""

import pickle
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from coa.learning.weights import Manifest

if TYPE_CHECKING:
    from actors.weights.parts import ModelParts
    from actors.weights.ranks import Ranks
    from actors.weights.shelf import Shelf

LOWEST_RATE = 0.5e9
"""Bytes a second: weights that arrive or are loaded more slowly are given up."""


def slowest_s(nbytes: int) -> float:
    """Seconds that so many bytes of weights need at LOWEST_RATE."""
    return nbytes / LOWEST_RATE


@dataclass(frozen=True)
class WeightsConfig:
    """How new weights get from learners to engines."""

    transport: str = "host"
    """host: through shared memory on a node, and through Ray's object store between nodes. collective: by a broadcast
    over TCP (gloo) to all engines that are ready; others use host. ipc: engines on the GPU of the only learner rank
    copy the weights from its memory (CUDA IPC; on a CPU, shared memory); others use host."""
    bucket_mib: float = 64.0
    """Size of the parts in which weights are moved and checked. A rank needs memory for two."""

    def __post_init__(self) -> None:
        if self.bucket_mib <= 0:
            raise ValueError(f"weights.bucket_mib is {self.bucket_mib:g}, expected more than 0")

    @property
    def bucket_bytes(self) -> int:
        return max(1, int(self.bucket_mib * 2**20))


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One version of the weights, ready to be taken; small, and the same for every engine."""

    manifest: Manifest
    transport: str
    place: Any
    """What the transport's receiver finds them by."""
    fallback: "Published | None" = None
    """The same weights by another way, for who misses this one."""


@dataclass(frozen=True, slots=True)
class Address:
    """An engine as transports see it."""

    engine: str
    """Names one start of one engine."""
    node: str
    workers: int = 1
    """Processes that take the weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReceiveOrder:
    """What the engine's actor sends its workers."""

    manifest: Manifest
    transport: str
    prepared: Any
    """What the transport's `prepare` gave: free of what only the actor can read, such as handles of other actors."""

    def pack(self) -> bytes:
        return pickle.dumps(self)


class Sender(Protocol):
    """The ranks' side; built on every rank, with its `Ranks` and the run's `Shelf`. A class that inherits it has to
    define `send` alone."""

    def send(self, parts: "ModelParts", version: int, name: str) -> Published | None:
        """Publishes the model whose `ModelParts` these are; collective. `name` is another one each time. None on all
        ranks but the first."""
        ...

    def withdraw(self) -> None:
        """The model is about to change: what engines would read from the ranks' own memory is offered no longer."""

    def check(self) -> None:
        """Called now and then between two orders: raises what has gone wrong beside them."""


class Receiver(Protocol):
    """The engines' side."""

    async def prepare(self, published: Published, address: Address) -> Any:
        """Runs in the engine's actor and must not block it; what it returns can be pickled, and goes to each worker.
        Raises SyncError."""
        ...

    def receive(self, manifest: Manifest, prepared: Any, worker: int) -> AbstractContextManager[NDArray[np.uint8]]:
        """Runs in worker number `worker`, in a thread of its own. The flattened model, for as long as the context
        lasts. Raises SyncError."""
        ...

    async def acknowledge(self, published: Published, address: Address) -> None:
        """The engine has loaded the weights."""
        ...


class MakeSender(Protocol):
    def __call__(self, ranks: "Ranks", shelf: "Shelf") -> Sender:
        """`shelf`: where the run keeps its weights."""
        ...


@dataclass(frozen=True, slots=True)
class WeightTransport:
    sender: MakeSender | None
    """None where nothing is published this way."""
    receiver: Receiver
