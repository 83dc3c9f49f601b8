"""Weight transport through a safetensors file that every engine's node can read, such as that of a finished model."""

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.weights.manifest import Manifest, read_layout, seal
from actors.weights.segment import opened, reading
from actors.weights.store import Address
from actors.weights.transport import BUCKET_BYTES, Published, WeightTransport
from coa.errors import IncompleteWeights

NAME = "on_disk"


@dataclass(frozen=True, slots=True)
class FilePlace:
    path: str
    base: int
    """Offset in the file at which the model's bytes begin."""


class FileReceiver:
    """Maps the file that a FilePlace names."""

    async def prepare(self, published: Published, address: Address) -> FilePlace:
        return published.place

    @contextmanager
    def receive(self, manifest: Manifest, prepared: FilePlace, worker: int) -> Iterator[NDArray[np.uint8]]:
        with mapped(Path(prepared.path), prepared.base, manifest.layout.nbytes) as data:
            yield data

    async def acknowledge(self, published: Published, address: Address) -> None:
        """Does nothing: no sender waits for it."""


@contextmanager
def mapped(path: Path, base: int, nbytes: int) -> Iterator[NDArray[np.uint8]]:
    """Maps `nbytes` of a file from offset `base` on; pages are read on access. Raises SyncError."""
    with opened(path, os.O_RDONLY) as file:
        if (size := os.fstat(file).st_size) < base + nbytes:
            raise IncompleteWeights(f"{path} has {size} bytes, not {base + nbytes}")
        # A private mapping, since PyTorch wants writable memory; a page is copied only if it is written to.
        pages = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    # Tensors may still refer to the pages when the context ends: the last tensor frees the mapping.
    yield np.frombuffer(pages, np.uint8, count=nbytes, offset=base)


def published_file(version: int, model: Path) -> Published:
    """Publishes a finished model's weights as a version. Reads the whole file for its digests; raises SyncError."""
    path = model / "model.safetensors" if model.is_dir() else model
    layout, base = read_layout(path, BUCKET_BYTES)
    with reading(path, layout, base) as read:
        manifest: Manifest = seal(version, layout, read)
    return Published(manifest=manifest, transport=NAME, place=FilePlace(str(path.resolve()), base))


TRANSPORT = WeightTransport(sender=None, receiver=FileReceiver())
