"""The weight files of one node: the node's ranks write them, its engines map them, and other nodes copy them.

A version that is dropped leaves a spare file, over which the next version is written: new pages of shared memory would
be cleared by the system before they are written, which takes as long as writing them.
"""

import asyncio
import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.handles import Handle
from actors.weights.manifest import digest
from actors.weights.segment import SHARED_MEMORY, SegmentFolder, opened, write_all
from coa.errors import DamagedWeights, IncompleteWeights

CHUNK_BYTES = 64 * 2**20
"""Maximum number of bytes of a file in one transfer between nodes."""
READS = 4
"""Maximum number of concurrent transfers for one copy."""

SUFFIX = ".safetensors"
SPARE = f"spare{SUFFIX}"
"""Name of a folder's spare file; no version has it, since versions are named by numbers."""
Ranges = Sequence[tuple[int, int]]
"""Byte ranges of a file, as (start, stop)."""


class WeightHolder:
    """Keeps the files of one node and removes them when it closes. A plain class; on Ray an async actor whose reads and
    writes run in threads."""

    def __init__(self, root: Path = SHARED_MEMORY) -> None:
        self._segments = SegmentFolder(root)

    async def folder(self) -> str:
        return str(self._segments.path)

    async def read(self, name: str, ranges: Ranges) -> tuple[NDArray[np.uint8], bytes]:
        """Returns the concatenated byte ranges of a file, and their digest."""
        return await asyncio.to_thread(read_ranges, self._path(name), ranges)

    async def take(self, name: str, source: Handle, size: int, ranges: Ranges) -> str:
        """Copies ranges of another holder's file of that name, of `size` bytes, into this holder's file; returns the
        path."""
        path, room = self._path(name), asyncio.Semaphore(READS)
        if not path.exists():
            reuse_spare(path)

        async def copy(some: Ranges) -> None:
            async with room:
                data, expected = await source.read.remote(name, some)
                await asyncio.to_thread(write_ranges, path, size, some, data, expected)

        copies = [asyncio.ensure_future(copy(some)) for some in chunks(ranges, CHUNK_BYTES)]
        try:
            await asyncio.gather(*copies)
        finally:
            for one in copies:
                one.cancel()
        return str(path)

    async def drop(self, name: str, unread: bool) -> None:
        """Makes the file the spare one if nobody reads it (`unread`). Otherwise deletes it: processes that have it
        mapped keep their mapping."""
        if unread:
            leave_spare(self._path(name))
        else:
            self._path(name).unlink(missing_ok=True)

    async def keep_only(self, names: Sequence[str]) -> None:
        """Deletes all other files, which ranks left behind that were killed while writing."""
        for path in self._segments.path.glob(f"*{SUFFIX}"):
            if path.name.removesuffix(SUFFIX) not in names:
                path.unlink(missing_ok=True)

    async def close(self) -> None:
        self._segments.close()

    def _path(self, name: str) -> Path:
        return segment_path(str(self._segments.path), name)


def segment_path(folder: str, name: str) -> Path:
    return Path(folder) / f"{name}{SUFFIX}"


def leave_spare(path: Path) -> None:
    """Makes the file of a version that nobody reads the folder's spare one, if it is there."""
    with suppress(FileNotFoundError):
        path.replace(path.with_name(SPARE))


def reuse_spare(path: Path) -> None:
    """Makes the folder's spare file, if there is one, the file of a version that is about to be written."""
    with suppress(FileNotFoundError):
        path.with_name(SPARE).replace(path)


def chunks(ranges: Ranges, limit: int) -> Iterator[list[tuple[int, int]]]:
    """Yields the ranges in order, in lists of at most `limit` bytes; longer ranges are split."""
    chunk: list[tuple[int, int]] = []
    room = limit
    for start, stop in ranges:
        while start < stop:
            end = min(stop, start + room)
            chunk.append((start, end))
            room -= end - start
            start = end
            if not room:
                yield chunk
                chunk, room = [], limit
    if chunk:
        yield chunk


def read_ranges(path: Path, ranges: Ranges) -> tuple[NDArray[np.uint8], bytes]:
    data = np.empty(sum(stop - start for start, stop in ranges), np.uint8)
    view = data.data
    at = 0
    with opened(path, os.O_RDONLY) as file:
        for start, stop in ranges:
            while start < stop:
                count = os.preadv(file, [view[at : at + stop - start]], start)
                if count == 0:
                    raise IncompleteWeights(f"{path} ends at byte {start}, before byte {stop}")
                at, start = at + count, start + count
    return data, digest(data)


def write_ranges(path: Path, size: int, ranges: Ranges, data: NDArray[np.uint8], expected: bytes) -> None:
    """Writes the ranges; raises DamagedWeights if the digest of `data` is not `expected`."""
    if digest(data) != expected:
        raise DamagedWeights(f"{path.name}: bytes changed between two nodes")
    at = 0
    with opened(path, os.O_RDWR | os.O_CREAT) as file:
        os.ftruncate(file, size)
        for start, stop in ranges:
            write_all(file, data[at : at + stop - start], start)
            at += stop - start
