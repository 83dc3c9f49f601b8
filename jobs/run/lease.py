"""A lease on a run's folder: one command at a time works in it, and a second one gets an error that names the holder.

    with hold(Path("runs/demo")):
        ...                             lease.json: {"host": "head", "pid": 4711, "since": "2026-11-23 00:12:14", ...}

Two things keep others away. On one host, and on file systems that share locks among hosts, a POSIX lock on the file:
the kernel frees it when its holder ends, however that ends. Where hosts do not see each other's locks, the heartbeat:
the file's time of change, which the holder renews, and which is compared with that of a file that is written now, so
that clocks of hosts may differ. A lease without a heartbeat for LAPSE_S seconds is anybody's. Since the clock of the
file's host may jump, who takes it over first waits WATCH_S seconds for another heartbeat.
"""

import fcntl
import json
import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from coa.errors import UserError
from coa.storage.files import remove_partial
from coa.storage.holder import Holder, is_same, runs, this_process
from coa.unicode import is_whole

FILE = "lease.json"
BEAT_S = 10.0
LEAST_FREE = 16 * 2**20
"""Minimum free disk space at which a command begins, in bytes."""
LAPSE_S = 60.0
"""Seconds without a heartbeat after which a holder on another host counts as dead."""
WATCH_S = 25.0
"""Seconds for which a lapsed lease is watched: longer than two heartbeats."""
_SIZE = 512
"""Size of the file in bytes: one write replaces all of it, so that a reader sees either the old or the new holder."""


def is_held(holder: Holder, *, by: Holder, running: bool, silent_s: float) -> bool:
    """Whether a lease that no lock protects still belongs to another process.

    running: whether the holder's process exists, if it is on the same host. silent_s: seconds since the last heartbeat.
    """
    if holder.host != by.host:
        return silent_s < LAPSE_S
    return running and not is_same(holder, by)


def require_folder(folder: Path) -> None:
    """Raises UserError if a command can't write to the folder, which need not be there yet; writes nothing."""
    path = folder.absolute()
    if not is_whole(str(path)):
        raise UserError(f"{str(folder)!r} can't be a run's folder: the name {str(path)!r} is not UTF-8")
    there = next(one for one in (path, *path.parents) if os.path.lexists(one))
    if not there.is_dir():
        what = f"a link to {there.readlink()}, which is no folder" if there.is_symlink() else "a file"
        raise UserError(f"{folder} can't be a run's folder: {there} is {what}")
    if not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"{folder} can't be a run's folder: {there} is not writable")
    disk = shutil.disk_usage(there)
    if disk.total and disk.free < LEAST_FREE:  # some file systems do not know their size
        raise UserError(
            f"{folder} can't be a run's folder: its disk is full ({disk.free / 2**20:.1f} MiB free, at least "
            f"{LEAST_FREE / 2**20:.0f} are needed)"
        )


@contextmanager
def hold(folder: Path) -> Iterator[None]:
    """Makes the folder, and holds its lease within. What a killed command left half written there is removed.

    Raises UserError if another command holds it, or if nothing can be written there. A command whose lease is taken
    over, because its heartbeat was not seen, is interrupted, and ends with a UserError that says so.
    """
    us = this_process()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(folder, us)
    except OSError as error:
        raise UserError(f"{folder} can't be a run's folder: {error.strerror}") from error
    remove_partial(folder)
    ended, lost = threading.Event(), threading.Event()
    beats = threading.Thread(target=_beat, args=(descriptor, us, ended, lost), name="lease", daemon=True)
    beats.start()
    try:
        yield
    except KeyboardInterrupt:
        if lost.is_set():
            raise UserError(f"{folder} was taken over: {_describe(_read(descriptor))}") from None
        raise
    finally:
        ended.set()
        beats.join()
        if not lost.is_set():
            with suppress(OSError):
                (folder / FILE).unlink()
        os.close(descriptor)  # which frees the lock


def _acquire(folder: Path, us: Holder) -> int:
    """Locks the lease's file, writes `us` to it and returns its descriptor; raises UserError if another holds it."""
    path = folder / FILE
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            locked = _lock(descriptor)
            if locked and not _is(descriptor, path):
                os.close(descriptor)  # its holder has just ended, and removed it
                continue
            holder = _read(descriptor)
            if not locked or (holder is not None and _is_held(folder, descriptor, holder, us)):
                raise UserError(f"{folder} is in use: {_describe(holder)}; end it, or choose another folder")
            try:
                os.pwrite(descriptor, json.dumps(asdict(us)).ljust(_SIZE).encode(), 0)
                os.fsync(descriptor)
            except OSError:  # the disk is full: the incomplete file is removed
                with suppress(OSError):
                    path.unlink()
                raise
            return descriptor
        except BaseException:
            os.close(descriptor)
            raise


def _lock(descriptor: int) -> bool:
    """Takes the lock; False if another process has it. True also on file systems without locks."""
    try:
        # Not `flock`: forked children would keep holding it.
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except PermissionError:  # EACCES, which POSIX allows if another process has the lock
        return False
    except OSError:
        return True
    return True


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _is_held(folder: Path, descriptor: int, holder: Holder, us: Holder) -> bool:
    beat = os.fstat(descriptor).st_mtime_ns
    with tempfile.NamedTemporaryFile(dir=folder, prefix=f".{FILE}-") as now:
        silent_s = (os.fstat(now.fileno()).st_mtime_ns - beat) / 1e9
    if holder.host != us.host and not -1 <= silent_s < LAPSE_S:
        time.sleep(WATCH_S)
        silent_s = 0.0 if os.fstat(descriptor).st_mtime_ns != beat else LAPSE_S
    return is_held(holder, by=us, running=runs(holder), silent_s=silent_s)


def _read(descriptor: int) -> Holder | None:
    """The holder that the file names; None if none has been written yet."""
    try:
        return Holder(**json.loads(os.pread(descriptor, _SIZE, 0)))
    except (ValueError, TypeError):
        return None


def _describe(holder: Holder | None) -> str:
    return f"by {holder or 'another command'}"


def _beat(descriptor: int, us: Holder, ended: threading.Event, lost: threading.Event) -> None:
    while not ended.wait(BEAT_S):
        with suppress(OSError):  # a file system that does not answer for a while
            if _read(descriptor) != us:
                lost.set()
                os.kill(os.getpid(), signal.SIGINT)
                return
            os.utime(descriptor)
