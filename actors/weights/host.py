"""Weight transport through host memory: ranks write into one file in shared memory, and engines map it.

    ranks of the first node ──► file ◄── other nodes' parts, copied by the holders (ZeRO-3 over several nodes)
    engines of that node map it; each other node with engines gets one copy

It needs no process group that spans ranks and engines, and works for engines that join late. `register` is an entry
point of the group `vllm.general_plugins`, so every vLLM process knows the backend named BACKEND.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from actors.weights.holder import Ranges, reuse_spare, segment_path
from actors.weights.on_disk import FilePlace, FileReceiver
from actors.weights.store import Address, Kept, WeightStore
from actors.weights.transport import Published, Sender, WeightTransport
from coa.errors import SyncError, WeightsLost

if TYPE_CHECKING:
    from actors.weights.parts import ModelParts
    from actors.weights.ranks import Ranks

NAME = "host"
BACKEND = "coa"
WORKER = "actors.weights.vllm_engine.WeightWorker"
"""Extension class of vLLM's workers."""
CHECK_S = 10.0
"""Seconds between two checks of a rank that its node's holder still runs."""


@dataclass(frozen=True, slots=True)
class HostPlace:
    store: WeightStore
    name: str
    base: int
    pending: bool = False
    """Whether the file may not exist yet and is written only if an engine needs it."""


class HostSender(Sender):
    def __init__(self, ranks: "Ranks", store: WeightStore) -> None:
        self._ranks, self._store = ranks, store
        self._checked = time.monotonic()
        self._folder = store.folder(ranks.node)
        ranks.barrier()  # `folder` removes files of earlier ranks: no rank may write before all have called it

    def send(self, parts: "ModelParts", version: int, name: str) -> Published | None:
        ranks = self._ranks
        path, base = segment_path(self._folder, name), len(parts.layout.header())
        if ranks.nodes.index(ranks.node) == ranks.rank:
            reuse_spare(path)
        ranks.barrier()  # no rank may create the file before
        ranks.write(path, parts)
        if len(set(ranks.nodes)) > 1:
            self._merge(parts, name, base)
        manifest = ranks.seal(path, parts.layout, version)
        if ranks.rank != 0:
            return None
        self._store.keep(Kept(name, ranks.node, str(path), manifest))
        return Published(manifest=manifest, transport=NAME, place=HostPlace(self._store, name, base))

    def check(self) -> None:
        """Raises WeightsLost if the holder of this node has ended. Engines of other nodes may wait for what it had,
        and with `max_staleness: 0` no batch comes before they have it."""
        if time.monotonic() - self._checked >= CHECK_S:
            self._store.check(self._ranks.node, self._folder)
            self._checked = time.monotonic()

    def _merge(self, parts: "ModelParts", name: str, base: int) -> None:
        """Copies the parts that ranks of other nodes have written to the first node."""
        ranks = self._ranks
        ranges = [(base + start, base + stop) for start, stop in parts.ranges(ranks.writer, ranks.writers)]
        everyones = ranks.gather((ranks.node, ranges))
        if ranks.rank == 0:
            self._store.merge(
                name, ranks.first_node, base + parts.layout.nbytes, elsewhere(everyones, ranks.first_node)
            )
        ranks.barrier()


def elsewhere(everyones: Sequence[tuple[str, Ranges]], first: str) -> list[tuple[str, Ranges]]:
    """For each node but the first, the byte ranges that its ranks have written, sorted."""
    by_node: dict[str, list[tuple[int, int]]] = {}
    for node, ranges in everyones:
        if node != first:
            by_node.setdefault(node, []).extend(ranges)
    return [(node, sorted(ranges)) for node, ranges in by_node.items() if ranges]


class HostReceiver(FileReceiver):
    async def prepare(self, published: Published, address: Address) -> FilePlace:
        place: HostPlace = published.place
        size = published.manifest.layout.nbytes
        try:
            return FilePlace(await place.store.path(place.name, address, size), place.base)
        except SyncError as error:
            if not place.pending:
                raise
            raise WeightsLost(f"{error}: they are asked for again, or others") from error

    async def acknowledge(self, published: Published, address: Address) -> None:
        await published.place.store.acknowledge(published.place.name, address)


TRANSPORT = WeightTransport(sender=HostSender, receiver=HostReceiver())


def register() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # plugins may be loaded more than once in a process
        WeightTransferEngineFactory.register_engine(BACKEND, "actors.weights.vllm_engine", "ManifestEngine")
