"""Files and folders that are either whole or absent, and the typed errors of a disk that takes no more."""

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coa.errors import DiskFull, ReadOnlyDisk

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file so that a reader, or a run that resumes after a crash, sees the old file or the new one.

    Raises DiskFull if there is no room; the old file stays then.
    """
    with replacing(path) as part:
        part.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path for a file that takes the place of `path` at the end; after an error nothing has changed.

    Raises DiskFull if there is no room. Several processes may replace one file at the same time; the last one wins.
    """
    part = _part_of(path, f"{os.getpid()}.partial")
    try:
        with room_at(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            sync(part)
            part.replace(path)
    finally:
        with suppress(OSError):  # on a disk that is read-only it is not even looked for
            part.unlink()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder that takes the place of the folder `path` at the end; after an error nothing has changed.

    Raises DiskFull if there is no room. One process at a time: what a killed one left behind is removed first.
    """
    part = _part_of(path, "partial")
    shutil.rmtree(part, ignore_errors=True)
    try:
        with room_at(path):
            part.mkdir(parents=True)
            yield part
            for file in part.rglob("*"):
                if file.is_file():
                    sync(file)
            shutil.rmtree(path, ignore_errors=True)
            part.replace(path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def sync(path: Path) -> None:
    """Returns once the file is on the disk, so that a power failure after the rename does not leave it empty."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Returns once the names in the folder are on the disk: a file whose name is not there is lost with the power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def room_at(path: Path) -> Iterator[None]:
    """Raises DiskFull or ReadOnlyDisk, with one line, where the disk does not take what is written inside."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # PyTorch makes a RuntimeError of what its stream raises
        if found := of_disk(path, error):
            raise found from error
        raise


def of_disk(path: Path, error: BaseException) -> DiskFull | ReadOnlyDisk | None:
    """What the error, or one on the way to it, says of the disk on which `path` is."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, OSError) and found.errno in _FULL:
            return full(path)
        if isinstance(found, OSError) and found.errno == errno.EROFS:
            return ReadOnlyDisk(f"{path}: the disk has become read-only")
        found = found.__cause__ or found.__context__
    return None


def full(path: Path) -> DiskFull:
    return DiskFull(f"{path}: no space left on the disk")


def _part_of(path: Path, ending: str) -> Path:
    """A hidden name beside `path`, so that no reader takes what is not finished for data."""
    return path.with_name(f".{path.name}.{ending}")
