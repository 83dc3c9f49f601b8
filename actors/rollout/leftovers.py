"""Files outside of a run's folder that vLLM's processes make and, if they are killed, leave: sockets in the temporary
folder, and semaphores in /dev/shm. Each engine's have names of their own; the next engine on the machine removes those
of engines that are gone.
"""

import fcntl
import multiprocessing
import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

PREFIX = "coa-engine-"
SHARED_MEMORY = Path("/dev/shm")
_kept: list[int] = []
"""Descriptors of the locks of this process's folders."""


def own_place() -> Path:
    """A new folder for the sockets of this process's engine; its semaphores are named after it. First removes what
    engines left that are gone."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    while (folder := _locked(parent / f"{PREFIX}{secrets.token_hex(4)}")) is None:
        pass
    process: Any = multiprocessing.current_process()
    process._config["semprefix"] = f"/{folder.name}"  # as Python's own name for it, which processes hand on
    return folder


def _locked(folder: Path) -> Path | None:
    """The folder, made and locked: a free lock means that the owner is gone. None if another engine's sweep took it for
    one that was left, before it was locked."""
    folder.mkdir(mode=0o700)
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not folder.exists():
        os.close(lock)
        return None
    _kept.append(lock)
    return folder


def sweep(parent: Path) -> None:
    """Removes the folders and semaphores of engines that are gone."""
    for folder in parent.glob(f"{PREFIX}*"):
        with suppress(OSError):  # another user's, one in use, or removed meanwhile
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for semaphore in SHARED_MEMORY.glob(f"sem.{folder.name}-*"):
                    semaphore.unlink(missing_ok=True)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
