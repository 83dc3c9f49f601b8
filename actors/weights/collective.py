"""Weight transport by a `torch.distributed` broadcast from rank 0 to every worker that is up.

    rank 0     publishes by `host` as well, then offers version v in a thread while training continues
    workers    connect to rank 0's store, and get their rank in a process group made for this version only
    rank 0 ──bucket 0, bucket 1, ...──► workers

The group is built anew for each version from the engines that took the last version, so that engines may come and go;
every wait has a timeout. A worker that is late or loses its connection takes the same weights from the host.

The group always uses gloo, even with GPUs: the bytes are in host memory at both ends, and a lost peer makes gloo raise
an error, while NCCL would end the process.
"""

import json
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actors.weights.holder import segment_path
from actors.weights.host import HostPlace, HostSender
from actors.weights.segment import reading
from actors.weights.transport import Address, Published, Sender, WeightTransport
from coa.errors import SyncError
from coa.learning.weights import Layout, Manifest

if TYPE_CHECKING:
    from actors.weights.parts import ModelParts
    from actors.weights.ranks import Ranks
    from actors.weights.shelf import Shelf

NAME = "collective"
JOIN_S = 20.0
"""Maximum seconds for an engine to join the broadcast of a version; a later engine takes it from the host."""
BUCKET_S = 60.0
"""Maximum seconds for one bucket."""
_GO = "go"


@dataclass(frozen=True, slots=True)
class Rendezvous:
    """Address of rank 0's store for one version, and the time limit for joining."""

    address: str
    port: int
    join_s: float


@dataclass(frozen=True, slots=True)
class CollectivePlace:
    host: HostPlace
    meeting: Rendezvous


@dataclass(frozen=True, slots=True)
class Invitation:
    """Data that the workers of one engine need to take a version."""

    meeting: Rendezvous
    engine: str


class CollectiveSender(Sender):
    """Publishes by `host`, and offers a broadcast of the same weights to the engines that are up."""

    def __init__(self, ranks: "Ranks", shelf: "Shelf") -> None:
        self._ranks, self._shelf = ranks, shelf
        self._host = HostSender(ranks, shelf)
        self._folder = shelf.folder(ranks.node)
        self._offers: list[Offer] = []
        """The newest two offers: a worker that is late for the previous offer learns at once that it is over."""

    def send(self, parts: "ModelParts", version: int, name: str) -> Published | None:
        for offer in self._offers:
            offer.withdraw()  # a newer version replaces it
        published = self._host.send(parts, version, name)
        if published is None:
            return None
        members = self._shelf.members()
        if not members:
            return published
        path = segment_path(self._folder, name)
        offer = Offer(path, parts.layout, members, self._shelf.absent, join_s=JOIN_S)
        self._offers = [*self._offers[-1:], offer]
        place = CollectivePlace(published.place, Rendezvous(offer.address, offer.port, JOIN_S))
        return Published(manifest=published.manifest, transport=NAME, place=place, fallback=published)

    def check(self) -> None:
        self._host.check()


class Offer:
    """One version, offered by rank 0 from a thread until it is taken or withdrawn, or the time to join is over."""

    def __init__(
        self,
        path: Path,
        layout: Layout,
        members: dict[str, int],
        absent: Any,
        *,
        join_s: float,
        address: str | None = None,
    ) -> None:
        """members: number of expected workers by engine. absent: called with the engines that did not join."""
        from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

        self._path, self._layout, self._members = path, layout, members
        self._absent, self._join_s = absent, join_s
        self._withdrawn = threading.Event()
        self.address = address or own_address()
        # A store that makes its own socket listens at every address of the machine.
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        listening = socket.create_server((self.address, 0), family=family)
        self.port: int = listening.getsockname()[1]
        self._store: Any = TCPStore(
            self.address,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=BUCKET_S),
            master_listen_fd=listening.detach(),
        )
        self.taken: list[str] = []
        """Workers that have received every bucket."""
        self._thread = threading.Thread(target=self._run, name="weights-offer", daemon=True)
        self._thread.start()

    def withdraw(self) -> None:
        """Ends the offer if the broadcast has not begun; otherwise waits for the broadcast's end."""
        self._withdrawn.set()
        self.join()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        came = self._gather()
        if self._withdrawn.is_set():
            came = []
        elif absent := [engine for engine in self._members if not any(w.startswith(f"{engine}/") for w in came)]:
            self._absent(absent)
        self._store.set(_GO, json.dumps(came))
        if not came:
            return
        try:
            group = process_group(self._store, 0, 1 + len(came))
            with reading(self._path, self._layout, len(self._layout.header())) as read:
                for index in range(self._layout.buckets):
                    broadcast(group, read(*self._layout.bucket(index)))
            # The store must outlive the slowest worker: wait until all workers have the last bucket.
            self._store.wait([f"done/{worker}" for worker in came], timedelta(seconds=BUCKET_S))
            self.taken = came
        except (RuntimeError, SyncError):
            pass  # a worker was lost: all workers take the weights from the host

    def _gather(self) -> list[str]:
        """The workers that joined in time, in a fixed order."""
        expected = [f"{engine}/{worker}" for engine, workers in self._members.items() for worker in range(workers)]
        step = 0.005
        for _ in range(int(self._join_s / step)):
            if self._store.check(expected) or self._withdrawn.wait(step):
                break
        return [worker for worker in expected if self._store.check([worker])]


class CollectiveReceiver:
    async def prepare(self, published: Published, address: Address) -> Invitation:
        place: CollectivePlace = published.place
        await place.host.shelf.join(address)
        return Invitation(place.meeting, address.engine)

    @contextmanager
    def receive(self, manifest: Manifest, prepared: Invitation, worker: int) -> Iterator[NDArray[np.uint8]]:
        yield take(prepared.meeting, manifest.layout, f"{prepared.engine}/{worker}")

    async def acknowledge(self, published: Published, address: Address) -> None:
        place: CollectivePlace = published.place
        await place.host.shelf.acknowledge(place.host.name, address)


def take(place: Rendezvous, layout: Layout, worker: str) -> NDArray[np.uint8]:
    """Receives the flattened model by the broadcast; raises SyncError if this worker missed it."""
    from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

    try:
        limit = timedelta(seconds=place.join_s)
        store = TCPStore(place.address, place.port, is_master=False, wait_for_workers=False, timeout=limit)
        store.set(worker, "here")
        store.wait([_GO], 2 * limit)
        came: Sequence[str] = json.loads(store.get(_GO))
        if worker not in came:
            raise SyncError("the broadcast began without this worker")
        group = process_group(store, 1 + came.index(worker), 1 + len(came))
        data = np.empty(layout.nbytes, np.uint8)
        for index in range(layout.buckets):
            start, stop = layout.bucket(index)
            broadcast(group, data[start:stop])
        store.set(f"done/{worker}", "done")
    except RuntimeError as error:  # torch.distributed raises it for lost peers and timeouts
        raise SyncError(f"the broadcast was missed: {str(error).splitlines()[0]}") from error
    return data


def process_group(store: Any, rank: int, size: int) -> Any:
    """Makes a process group for one version, beside the default group."""
    import torch.distributed as dist
    from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

    return dist.ProcessGroupGloo(PrefixStore("group", store), rank, size, timedelta(seconds=BUCKET_S))


def broadcast(group: Any, data: NDArray[np.uint8]) -> None:
    """Fills `data` with rank 0's data, or sends it if this is rank 0. `dist.broadcast` refuses groups that are not
    registered."""
    import torch

    options = torch.distributed.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([torch.from_numpy(data)], options).wait()


def own_address() -> str:
    """Address at which other nodes of the Ray cluster reach this machine."""
    ray: Any = sys.modules.get("ray")  # loaded in every process that runs on Ray
    return ray.util.get_node_ip_address() if ray and ray.is_initialized() else "127.0.0.1"


TRANSPORT = WeightTransport(sender=CollectiveSender, receiver=CollectiveReceiver())
