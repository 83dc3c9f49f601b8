"""Files and folders that are either complete or absent, and typed errors of full or read-only disks."""

import errno
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from coa.errors import DiskFull, ReadOnlyDisk, UserError
from coa.unicode import whole

ABANDONED_S = 60.0
"""Seconds without a change after which what is half written counts as left behind."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_PARTIAL = ".partial"


def write_atomically(path: Path, text: str) -> None:
    """Writes a text file so that a reader, or a run that resumes after a crash, sees the old file or the new one.

    Unpaired surrogates become question marks. Raises DiskFull if there is no room; the old file stays then.
    """
    with replacing(path) as part:
        part.write_text(whole(text), encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a path for a file that replaces `path` at the end; after an error nothing has changed.

    Raises DiskFull if there is no room. Several processes may replace one file at the same time; the last one wins.
    """
    part = _part_of(path, f".{os.getpid()}")
    try:
        with room_at(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield part
            sync(part)
            part.replace(path)
    finally:
        with suppress(OSError):  # a read-only disk raises even if the file does not exist
            part.unlink()


@contextmanager
def replacing_folder(path: Path) -> Iterator[Path]:
    """Yields an empty folder that replaces the folder `path` at the end; after an error nothing has changed. If `path`
    is a link, it stays, and the folder that it leads to is replaced.

    Raises DiskFull if there is no room, and UserError, before anything is written, as `target_of`. Only one process at
    a time may use it: leftovers of a killed process are removed first.
    """
    target = target_of(path)
    part, former = _part_of(target, ""), _part_of(target, ".former")
    for left in (part, former):
        shutil.rmtree(left, ignore_errors=True)
    try:
        with room_at(target):
            part.mkdir(parents=True)
            yield part
            for file in part.rglob("*"):
                if file.is_file():
                    sync(file)
            _swap(part, target, former)
    finally:
        for left in (part, former):
            shutil.rmtree(left, ignore_errors=True)


def _swap(part: Path, target: Path, former: Path) -> None:
    """Renames `part` to `target`, and what was there to `former`; after an error it is there again."""
    if target.exists():
        target.replace(former)
    try:
        part.replace(target)
    except OSError:
        if former.exists():
            former.replace(target)
        raise


def target_of(path: Path) -> Path:
    """The folder that is replaced for `path`: the one that a link leads to, which need not be there yet. Raises
    UserError if it can't be replaced by renaming another one."""
    target, said = path, f"{path}"
    if path.is_symlink():
        target = Path(os.path.realpath(path))
        said = f"{path} leads to {target}, which"
        if not target.parent.is_dir():
            raise UserError(f"{said} can't be written: there is no folder {target.parent}")
        if not os.access(target.parent, os.W_OK | os.X_OK):
            raise UserError(f"{said} can't be replaced: {target.parent} is not writable; let it lead to a folder below")
    if target.is_mount():
        raise UserError(f"{said} is a disk of its own and can't be replaced: make a link to a folder on that disk")
    if os.path.lexists(target) and not target.is_dir():
        raise UserError(f"{said} is a file: a folder is to be written there")
    return target


def remove_partial(folder: Path) -> None:
    """Removes what killed processes left in the folder's tree of files that `replacing` and `replacing_folder` began.

    One that changed in the last ABANDONED_S seconds may still be written by a process that outlives its command.
    """
    for part in list(folder.rglob(f".*{_PARTIAL}")):
        with suppress(OSError):
            if time.time() - max(one.stat().st_mtime for one in (part, *part.rglob("*"))) > ABANDONED_S:
                shutil.rmtree(part) if part.is_dir() else part.unlink()


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
    """Raises DiskFull or ReadOnlyDisk, with one line, if the disk rejects what is written inside."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # PyTorch turns its stream's errors into RuntimeError
        if found := of_disk(path, error):
            raise found from error
        raise


def of_disk(path: Path, error: BaseException) -> DiskFull | ReadOnlyDisk | None:
    """The disk error behind `error` or one of its causes, for the disk of `path`; None if there is none."""
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


def _part_of(path: Path, writer: str) -> Path:
    """A hidden name next to `path`, so that readers do not take an unfinished file for data."""
    return path.with_name(f".{path.name}{writer}{_PARTIAL}")
