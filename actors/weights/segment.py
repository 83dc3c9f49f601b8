"""Weight files: safetensors files that several processes write into at once, in shared memory or in a folder.

Ranks write and read them by position and never map them: mapped pages would count as the rank's memory.
"""

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.weights.manifest import Layout
from coa.errors import DiskFull, IncompleteWeights, SyncError

SHARED_MEMORY = Path("/dev/shm")
PREFIX = "coa-weights-"
LOCK = ".lock"

Piece = tuple[int, NDArray[np.uint8]]
"""(offset, bytes) of the flattened model."""


def write_pieces(path: Path, layout: Layout, pieces: "Iterator[Piece]") -> None:
    """Writes pieces of the flattened model into a file shared with other writers; creates it if missing.

    Every writer sets the same size and the same header, so that no writer waits for another.
    """
    header = layout.header()
    with opened(path, os.O_RDWR | os.O_CREAT) as file:
        try:
            os.ftruncate(file, len(header) + layout.nbytes)
            write_all(file, np.frombuffer(header, np.uint8), 0)
            for offset, data in pieces:
                write_all(file, data, len(header) + offset)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            size = (len(header) + layout.nbytes) / 2**30
            raise DiskFull(f"{path.parent}: no room for weights of {size:.2f} GiB") from error


def write_all(file: int, data: NDArray[np.uint8], offset: int) -> None:
    """Writes all of `data`; one system call writes at most 2 GiB."""
    view = data.data
    while len(view):
        written = os.pwrite(file, view, offset)
        view, offset = view[written:], offset + written


class SegmentReader:
    """Reads buckets of a weight file into one buffer: a bucket is valid until the next is read."""

    def __init__(self, file: int, layout: Layout, base: int) -> None:
        self._file, self._layout, self._base = file, layout, base
        self._buffer = np.empty(min(layout.bucket_bytes, layout.nbytes), np.uint8)

    def __call__(self, start: int, stop: int) -> NDArray[np.uint8]:
        """Bytes `start` to `stop` of the flattened model, at most a bucket; raises IncompleteWeights if the file ends
        before `stop`."""
        target = self._buffer[: stop - start]
        view, at = target.data, self._base + start
        while len(view):
            count = os.preadv(self._file, [view], at)
            if count == 0:
                raise IncompleteWeights(f"the file ends at byte {at}, before byte {self._base + stop}")
            view, at = view[count:], at + count
        return target


@contextmanager
def reading(path: Path, layout: Layout, base: int) -> Iterator[SegmentReader]:
    """Opens a weight file for reading; raises SyncError if it can't be opened."""
    with opened(path, os.O_RDONLY) as file:
        yield SegmentReader(file, layout, base)


@contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    try:
        file = os.open(path, flags, 0o666)  # private files are in a private folder
    except OSError as error:
        raise SyncError(f"{path}: {error.strerror}") from error
    try:
        yield file
    finally:
        os.close(file)


class SegmentFolder:
    """A folder for one process's weight files.

    It is locked for as long as the process lives. The next process to make such a folder removes the folders of killed
    processes.
    """

    def __init__(self, root: Path = SHARED_MEMORY) -> None:
        for old in root.glob(f"{PREFIX}*"):
            remove_abandoned(old)
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX, dir=root))
        self._lock = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def close(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def remove_abandoned(folder: Path) -> None:
    """Removes a folder whose process has ended. A folder without a lock file is still being created and is left
    alone."""
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except OSError:
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    except OSError:
        pass  # it is in use
    finally:
        os.close(lock)
