"""Ends a process when its parent dies, for processes that would otherwise keep running and hold their GPU memory.

vLLM's engine core does not watch its parent, and Ray ends an actor's children only if the actor's own process ends in
an orderly way. If an actor is killed, for example for its memory use, the core would stay behind, and the engine that
replaces it would find too little GPU memory.
"""

import os
import signal
from contextlib import suppress
from multiprocessing import connection, parent_process
from threading import Thread

_watching = 0
"""Id of the process that watches its parent; a forked process inherits this number, but not the watching thread."""


def end_with_parent() -> None:
    """Makes this process kill itself as soon as its parent has ended, in any way. May be called repeatedly.

    Works in processes started by `multiprocessing`; does nothing in any other process, such as an actor.
    """
    global _watching
    parent = parent_process()
    if parent is None or _watching == os.getpid():
        return
    _watching = os.getpid()
    ends: list[int] = [parent.sentinel]
    # Forked siblings hold the sentinel's other end open, so the parent process itself is watched as well.
    if parent.pid is not None and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            ends.append(os.pidfd_open(parent.pid))
    Thread(target=_wait_and_end, args=(ends,), name="end-with-parent", daemon=True).start()


def _wait_and_end(ends: list[int]) -> None:
    connection.wait(ends)
    os.kill(os.getpid(), signal.SIGKILL)
