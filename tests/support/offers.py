"""A rank alone, without a process group, and workers that take what it offers, in processes of their own.

python -m tests.support.offers FILE        takes the version that FILE has a pickled (Published, Address) of
"""

import asyncio
import json
import pickle
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import torch

from actors.learner.lora import Source
from actors.weights.manifest import Layout, Manifest, digest, seal
from actors.weights.parts import ModelParts
from actors.weights.segment import reading, write_pieces
from actors.weights.store import Address
from actors.weights.transport import Published
from actors.weights.transports import find_receiver, find_sender
from tests.support.patience import PATIENCE_S
from tests.support.weights import FolderWeightStore

T = TypeVar("T")
ENGINE = Address("engine", "")


class OnlyRank:
    """`actors.weights.ranks.Ranks` of a learner of one rank."""

    rank, world = 0, 1

    def __init__(self, node: str = "") -> None:
        self.node, self.nodes = node, [node]

    def gather(self, value: T) -> list[T]:
        return [value]

    def barrier(self) -> None:
        pass

    def write(self, path: Path, parts: ModelParts) -> None:
        write_pieces(path, parts.layout, parts.pieces())

    def seal(self, path: Path, layout: Layout, version: int) -> Manifest:
        with reading(path, layout, len(layout.header())) as read:
            return seal(version, layout, read)


def parts_of(tensors: Iterable[tuple[str, torch.Tensor]], bucket_bytes: int, rank: int = 0) -> ModelParts:
    """rank: of random adapters of all matrices; 0 for none."""

    def parameters(tensor: torch.Tensor) -> tuple[torch.nn.Parameter, ...]:
        own = [tensor]
        if rank and tensor.dim() == 2:
            own += [torch.randn(shape).to(tensor) for shape in ((rank, tensor.shape[1]), (tensor.shape[0], rank))]
        return tuple(torch.nn.Parameter(one, requires_grad=False) for one in own)

    torch.manual_seed(0)
    sources = [Source(name, parameters(tensor), 0.01) for name, tensor in tensors]
    return ModelParts(sources, sharded=False, bucket_bytes=bucket_bytes)


def sender_of(store: Any, transport: str = "ipc", ranks: Any = None) -> Any:
    alone: Any = OnlyRank()
    return find_sender(transport)(ranks or alone, store)


def store_in(folder: Path, members: dict[str, int] | None = None) -> FolderWeightStore:
    return FolderWeightStore(str(folder), members)


def take_elsewhere(published: Published, folder: Path, address: Address = ENGINE) -> dict[str, Any]:
    """What a worker in a process of its own says of the version: its digests, and seconds until they were checked."""
    file = folder / f"{address.engine}.pkl"
    file.write_bytes(pickle.dumps((published, address)))
    command = [sys.executable, "-m", "tests.support.offers", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=2 * PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def take(published: Published, address: Address = ENGINE) -> dict[str, Any]:
    """As an engine and its worker do; raises what they do."""
    receiver = find_receiver(published.transport)
    prepared = pickle.loads(pickle.dumps(asyncio.run(receiver.prepare(published, address))))
    if torch.cuda.is_available():
        torch.cuda.synchronize()  # its context is made here, once
    began = time.perf_counter()
    with receiver.receive(published.manifest, prepared, 0) as data:
        published.manifest.check(data)
        seconds = time.perf_counter() - began
        layout = published.manifest.layout
        spans = [layout.bucket(index) for index in range(layout.buckets)]
        return {"seconds": seconds, "digests": [digest(data[start:stop]).hex() for start, stop in spans]}


def digests_of(published: Published) -> list[str]:
    return [one.hex() for one in published.manifest.digests]


if __name__ == "__main__":
    print(json.dumps(take(*pickle.loads(Path(sys.argv[1]).read_bytes()))))
