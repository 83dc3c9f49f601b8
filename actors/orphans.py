"""Ends a process whose parent has died, for processes that would otherwise go on alone and keep their GPU memory.

vLLM's engine core does not look after its parent, and Ray ends an actor's children only where the actor's own process
comes to an orderly end. An actor that is killed, as for its memory, would leave the core behind, and the engine that
replaces it would find no room.
"""

import os
import signal
from contextlib import suppress
from multiprocessing import connection, parent_process
from threading import Thread

_watching = 0
"""Id of the process that is watching its parent; a fork inherits the number, and not the thread."""


def end_with_parent() -> None:
    """From now on this process is killed as soon as its parent is gone, however that ended. It may be called again.

    This holds for processes that `multiprocessing` has started. In any other process, such as an actor, nothing
    happens.
    """
    global _watching
    parent = parent_process()
    if parent is None or _watching == os.getpid():
        return
    _watching = os.getpid()
    ends: list[int] = [parent.sentinel]
    # Siblings that were forked hold the sentinel's other end open, so the process itself is watched as well.
    if parent.pid is not None and hasattr(os, "pidfd_open"):
        with suppress(OSError):
            ends.append(os.pidfd_open(parent.pid))
    Thread(target=_wait_and_end, args=(ends,), name="end-with-parent", daemon=True).start()


def _wait_and_end(ends: list[int]) -> None:
    connection.wait(ends)
    os.kill(os.getpid(), signal.SIGKILL)
