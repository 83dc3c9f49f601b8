"""Which core each process of a run has: engines and tools the first, all else the second; and what a core is busy with.

Ray starts processes as it goes, so a thread looks again and again, and notes what each has computed.
"""

import os
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

ENGINES, OTHERS = 0, 1
OF_ENGINES = ("ray::RolloutEngine", "VLLM::", "ray::ToolDispatcher", "ray::ToolExecutor")
LOOK_EVERY_S = 2.0
LEAST = 0.005
"""Of a core's time that is told of."""
Computed = Mapping[str, float]
"""CPU seconds since the start, by the title of processes."""


def core_of(title: str) -> int:
    return ENGINES if title.startswith(OF_ENGINES) else OTHERS


def short(title: str) -> str:
    """ "ray::RolloutEngine.events" is "RolloutEngine", "/usr/lib/raylet/raylet" is "raylet"."""
    name = title.split()[0] if title.strip() else "?"
    if name.startswith("ray::"):
        return name.removeprefix("ray::").split(".")[0].split("(")[0]
    return Path(name).name


def bind(process: int, core: int) -> None:
    """Puts all threads of a process on a core."""
    for thread in list(Path(f"/proc/{process}/task").iterdir()):
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(thread.name), {core})


class Divided:
    """Keeps this process and all that it starts on their cores."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, Computed]] = []
        """(moment by the wall clock, what was computed until then), one after the other."""
        self._bound: set[int] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def start(self) -> None:
        bind(os.getpid(), OTHERS)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def shares(self, began: float, ended: float) -> dict[str, float]:
        """CPU seconds a second of each kind of process, between two moments by the wall clock."""
        if not (inside := [one for one in self.seen if began <= one[0] <= ended]) or len(inside) < 2:
            return {}
        (first, before), (last, after) = inside[0], inside[-1]
        shares = {name: (seconds - before.get(name, 0.0)) / (last - first) for name, seconds in after.items()}
        return {name: share for name, share in sorted(shares.items()) if share >= LEAST}

    def _watch(self) -> None:
        while not self._ended.wait(LOOK_EVERY_S):
            self.seen.append((time.time(), self._look()))

    def _look(self) -> Computed:
        computed: dict[str, float] = defaultdict(float)
        for process in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            with suppress(psutil.NoSuchProcess, FileNotFoundError):
                title = "driver" if process.pid == os.getpid() else " ".join(process.cmdline())
                if process.pid not in self._bound and core_of(title) == ENGINES:
                    bind(process.pid, ENGINES)
                    self._bound.add(process.pid)
                times = process.cpu_times()
                computed[short(title)] += times.user + times.system
        return computed


@contextmanager
def divided() -> Iterator[Divided]:
    """Use before anything is started; this process stays on its core behind it."""
    cores = Divided()
    cores.start()
    try:
        yield cores
    finally:
        cores.stop()


BUSY = """
import os, sys
import numpy as np
os.sched_setaffinity(0, {int(sys.argv[1])})
a, owner, passing = np.ones((192, 192), np.float32), os.getppid(), np.ones(2**20, np.float32)
while os.getppid() == owner:
    for _ in range(200):
        a = np.tanh(a @ a)
    passing = passing * 1.0
"""


@contextmanager
def busy(core: int) -> Iterator[None]:
    """The core computes all along: small matrices, and memory that no cache of its own holds."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    load = subprocess.Popen([sys.executable, "-c", BUSY, str(core)], env=environment)
    try:
        yield
    finally:
        load.kill()
        load.wait()
