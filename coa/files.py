"""Files that are either whole or not there, and disks that are full."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coa.errors import DiskFull

_FULL = (errno.ENOSPC, errno.EDQUOT)


def write_atomically(path: Path, text: str) -> None:
    """A reader, or a run that resumes after a crash, sees the old file or the new one, never a part."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which takes the place of `path` at the end, unless there was an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.partial")  # hidden, so that no reader takes it for data
    try:
        yield part
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def room_at(path: Path) -> Iterator[None]:
    """Raises DiskFull, with one line, where there is no room for what is written inside."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise full(path) from error
        raise


def full(path: Path) -> DiskFull:
    return DiskFull(f"{path}: no space left on the disk")
