"""Disks of tests: small ones that fill up, and folders that become read-only. They are mounted, which needs root."""

import errno
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs a mount")
FILLER = "filler"
PAGE = 4096


@contextmanager
def disk(folder: Path, mib: int) -> Iterator[None]:
    """A disk of that size in the folder's place."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", str(folder)], check=True)
    try:
        yield
    finally:
        unmount(folder)


@contextmanager
def full(folder: Path) -> Iterator[None]:
    """The folder's disk has no room meanwhile."""
    filler = folder / FILLER
    with filler.open("ab", buffering=0) as file:
        try:
            for size in (PAGE * 256, PAGE):
                fill(file.fileno(), size)
            yield
        finally:
            filler.unlink()


def fill(file: int, size: int) -> None:
    """Writes pieces of that size until the next has no room."""
    piece = bytes(size)
    try:
        while os.write(file, piece) == size:
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """The folder can't be written to meanwhile, but for files that are open."""
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", str(folder)], check=True)
        yield
    finally:
        unmount(folder)


def unmount(folder: Path) -> None:
    """Also where files are open there: they go with who has them open."""
    subprocess.run(["umount", "--lazy", str(folder)], check=True)
