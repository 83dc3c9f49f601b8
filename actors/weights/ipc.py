"""Weight transport through memory of a device that a rank and an engine share: CUDA IPC on a GPU, shared memory on a
CPU.

    rank      computes the digests, then offers the version from a thread until its weights change
    worker    connects to the rank's port, tells its device, and gets handles of two buffers of one bucket each
    rank ──fills one buffer──► worker copies it to host memory while the rank fills the other buffer ──► ...

No file holds the model. A rank needs memory for two buckets during a transfer, and a worker for the model once, until
it has loaded it. The rank writes the version for `host` instead if a worker is on another device or node, is one of
several workers, can't open the handles, or has not come when the weights are about to change. If an engine can't share
the device, all later versions are published by `host` from the beginning, and so are those of several ranks.
"""

import hmac
import json
import logging
import math
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection, Listener
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from actors.weights.holder import reuse_spare, segment_path
from actors.weights.host import NAME as HOST
from actors.weights.host import HostPlace, HostSender
from actors.weights.manifest import Layout, Manifest, digest
from actors.weights.segment import write_pieces
from actors.weights.store import Address, Kept
from actors.weights.transport import Published, Sender, WeightTransport, slowest_s
from coa.errors import SyncError
from coa.json_object import Json

if TYPE_CHECKING:
    from actors.weights.parts import ModelParts
    from actors.weights.ranks import Ranks
    from actors.weights.sharing import TensorHandle
    from actors.weights.store import WeightStore

NAME = "ipc"
HELLO_S = 10.0
"""Maximum seconds for a worker's first message."""
STEP_S = 60.0
"""Maximum seconds for which one side waits for the other per bucket; after that the other side counts as failed."""
WAIT_S = 20.0
"""Maximum seconds for which a rank that is about to change its weights waits for engines that have not taken them."""
BUFFERS = 2
logger = logging.getLogger(__name__)

CANNOT = -1
"""Message of a worker that can't open the handles."""
DONE = -2
"""Message of a worker that has released them."""
LONGEST = 64 * 2**10
"""Maximum bytes of a message."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Address at which workers reach the rank, and the token that they authenticate with."""

    address: tuple[str, int]
    token: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class IpcPlace:
    meeting: Meeting
    host: HostPlace


@dataclass(frozen=True, slots=True)
class Invitation:
    """Data that the workers of one engine need to take a version."""

    meeting: Meeting
    address: Address


class IpcSender(Sender):
    def __init__(self, ranks: "Ranks", store: "WeightStore") -> None:
        self._ranks, self._store = ranks, store
        self._host = HostSender(ranks, store)
        self._folder = store.folder(ranks.node)
        self._offer: Offer | None = None
        self._elsewhere = ranks.world > 1
        """Whether versions are published by `host`."""

    def send(self, parts: "ModelParts", version: int, name: str) -> Published | None:
        self.withdraw()
        if self._elsewhere:
            return self._host.send(parts, version, name)
        manifest = sealed(parts, version)
        self._offer = Offer(parts, manifest, name, node=self._ranks.node, folder=self._folder, store=self._store)
        host = HostPlace(self._store, name, len(parts.layout.header()), pending=True)
        by_host = Published(manifest=manifest, transport=HOST, place=host)
        return Published(manifest=manifest, transport=NAME, place=IpcPlace(self._offer.meeting, host), fallback=by_host)

    def withdraw(self) -> None:
        if self._offer is not None:
            offer, self._offer = self._offer, None
            offer.withdraw()
            self._elsewhere = offer.elsewhere

    def check(self) -> None:
        if self._offer is not None and self._offer.failure is not None:
            raise self._offer.failure
        self._host.check()


class Offer:
    """One version, which a rank's thread hands to one worker after another until it is withdrawn."""

    def __init__(
        self, parts: "ModelParts", manifest: Manifest, name: str, *, node: str, folder: str, store: "WeightStore"
    ) -> None:
        self._parts, self._manifest, self._name, self._node = parts, manifest, name, node
        self._path, self._store = segment_path(folder, name), store
        self._members = store.members()
        """Engines that have taken weights before."""
        self._listener = Listener((own_address(), 0), "AF_INET", backlog=16)
        address = self._listener.address
        assert isinstance(address, tuple)  # that of AF_INET
        self.meeting = Meeting(address, secrets.token_hex(16))
        self._over = self._kept = False
        self.elsewhere = False
        """Whether a worker can't use this transport."""
        self.taken: set[str] = set()
        """Engines that have received every bucket."""
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="weights-offer", daemon=True)
        self._thread.start()

    def withdraw(self) -> None:
        """Waits for known engines that have not come yet; writes the version for `host` if some are still missing after
        WAIT_S."""
        until = time.monotonic() + WAIT_S
        while self._missing() and self._thread.is_alive() and time.monotonic() < until:
            time.sleep(0.005)
        self._over = True
        with suppress(OSError):
            Client(self.meeting.address, "AF_INET").close()  # unblocks the thread, which is in accept()
        self._thread.join()
        if self.failure is not None:
            raise self.failure
        if missing := self._missing():
            self._keep()
            self._store.absent(missing)

    def _missing(self) -> list[str]:
        return [] if self._kept else [engine for engine in self._members if engine not in self.taken]

    def _run(self) -> None:
        try:
            with self._listener as listener:
                while True:
                    with listener.accept() as connection:
                        if self._over:
                            return
                        if (said := self._greeted(connection)) is not None:
                            self._serve(connection, said)
        except BaseException as error:  # raised in the rank by `withdraw` or `check`
            self.failure = error

    def _greeted(self, connection: Connection) -> Json | None:
        """The worker's first message; None if the peer has no valid token."""
        try:
            bounded(connection, HELLO_S)
            said = receive(connection)
            return said if hmac.compare_digest(said["token"], self.meeting.token) else None
        except (OSError, EOFError, ValueError, TypeError, KeyError):
            return None

    def _serve(self, connection: Connection, said: Json) -> None:
        """Hands the version to a worker; if that fails, writes it for `host` before the worker's connection is
        closed."""
        from actors.weights.sharing import device_name

        try:
            bounded(connection, STEP_S)
            here = (self._node, device_name(self._parts.device), 1)
            if (said["node"], said["device"], said["workers"]) != here:
                send(connection, None)
                raise SyncError(f"engine {said['engine']} is not on the rank's device alone")
            self._hand_over(connection)
            self.taken.add(said["engine"])
        except (SyncError, OSError, EOFError, ValueError, RuntimeError) as error:
            logger.warning("weights by %s: %s: %s; they go to the host", NAME, type(error).__name__, error)
            self.elsewhere |= isinstance(error, SyncError)
            self._keep()

    def _hand_over(self, connection: Connection) -> None:
        from actors.weights.sharing import buckets_of, shared_buffers

        layout = self._manifest.layout
        with shared_buffers(self._path, BUFFERS, bucket_size(layout), self._parts.device) as (tensors, handles):
            send(connection, handles)
            for index, bucket in buckets_of(self._parts, tensors):
                del bucket  # a view that would keep the buffer alive
                send(connection, index)
                if index:  # the other buffer is filled next
                    expect(connection, index - 1)
            expect(connection, layout.buckets - 1)
            expect(connection, DONE)

    def _keep(self) -> None:
        if not self._kept:
            reuse_spare(self._path)
            write_pieces(self._path, self._manifest.layout, self._parts.pieces())
            self._store.keep(Kept(self._name, self._node, str(self._path), self._manifest))
            self._kept = True


def sealed(parts: "ModelParts", version: int) -> Manifest:
    """The manifest of a model that is entirely on this rank."""
    import torch

    from actors.weights.sharing import buckets_of

    buffer = torch.empty(bucket_size(parts.layout), dtype=torch.uint8, device=parts.device)
    found = tuple(digest(bucket.cpu().numpy()) for _, bucket in buckets_of(parts, [buffer]))
    return Manifest(version, parts.layout, found)


def bucket_size(layout: Layout) -> int:
    return min(layout.bucket_bytes, layout.nbytes)


# --- the engines' side ------------------------------------------------------------------------------------------------


class IpcReceiver:
    async def prepare(self, published: Published, address: Address) -> Invitation:
        place: IpcPlace = published.place
        await place.host.store.join(address)
        return Invitation(place.meeting, address)

    @contextmanager
    def receive(self, manifest: Manifest, prepared: Invitation, worker: int) -> Iterator[NDArray[np.uint8]]:
        yield take(prepared, manifest.layout)

    async def acknowledge(self, published: Published, address: Address) -> None:
        """Does nothing: the rank knows which engines have copied every bucket, and keeps nothing for them."""


def take(invitation: Invitation, layout: Layout) -> NDArray[np.uint8]:
    """Copies the flattened model into host memory; raises SyncError if it can't be taken by this transport."""
    from actors.weights.sharing import device_name, own_device

    address = invitation.address
    said = {
        "token": invitation.meeting.token,
        "engine": address.engine,
        "node": address.node,
        "workers": address.workers,
        "device": device_name(own_device()),
    }
    try:
        with Client(invitation.meeting.address, "AF_INET") as rank:
            bounded(rank, STEP_S + slowest_s(layout.nbytes))  # includes the time to write the version for `host`
            send(rank, said)
            handles = receive(rank)
            if handles is None:
                until_closed(rank)
                raise SyncError("the rank is not on this device")
            return copied(rank, handles, layout)
    except (OSError, EOFError, ValueError, RuntimeError) as error:
        raise SyncError(f"the rank's buffers were missed: {type(error).__name__}: {error}") from error


def copied(rank: Connection, handles: "list[TensorHandle]", layout: Layout) -> NDArray[np.uint8]:
    import torch

    from actors.weights.sharing import opened_buffers

    data = np.empty(layout.nbytes, np.uint8)
    try:
        buffers = opened_buffers(handles)
    except (OSError, RuntimeError):
        send(rank, CANNOT)
        until_closed(rank)
        raise
    for index in range(layout.buckets):
        expect(rank, index)
        start, stop = layout.bucket(index)
        torch.from_numpy(data[start:stop]).copy_(buffers[index % BUFFERS][: stop - start])
        send(rank, index)
    buffers.clear()
    send(rank, DONE)
    until_closed(rank)
    return data


def own_address() -> str:
    """Address at which other nodes of the Ray cluster reach this machine."""
    ray = sys.modules.get("ray")  # loaded in every process that runs on Ray
    return ray.util.get_node_ip_address() if ray and ray.is_initialized() else "127.0.0.1"


TRANSPORT = WeightTransport(sender=IpcSender, receiver=IpcReceiver())


def bounded(connection: Connection, seconds: float) -> None:
    """Sets a timeout for each read and write of the connection, after which it raises OSError. Also disables Nagle's
    delay, so that short messages are sent at once."""
    with socket.fromfd(connection.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        for limit in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            same.setsockopt(socket.SOL_SOCKET, limit, struct.pack("ll", math.ceil(seconds), 0))
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def send(connection: Connection, data: object) -> None:
    connection.send_bytes(json.dumps(data).encode())


def receive(connection: Connection) -> Any:
    """Receives the next message. Raises EOFError if the connection is closed, OSError after the timeout, and ValueError
    for an invalid message."""
    return json.loads(connection.recv_bytes(LONGEST))


def expect(connection: Connection, number: int) -> None:
    """Waits for the message `number`; raises SyncError for any other message."""
    found = receive(connection)
    if found == CANNOT:
        raise SyncError("a worker can't open the handles of the rank's memory")
    if found != number:
        raise SyncError(f"the other side is at {found}, not at {number}")


def until_closed(connection: Connection) -> None:
    """Returns when the other side has closed the connection, after its work for this process."""
    with suppress(EOFError, ConnectionError):
        while True:
            connection.recv_bytes(LONGEST)
