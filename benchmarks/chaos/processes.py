"""Finds the processes of a run among the descendants of given processes, and sends signals to them."""

import signal
from collections.abc import Iterator
from contextlib import suppress

import psutil

from benchmarks.chaos.course import Seen
from benchmarks.chaos.plan import WAITING, Part

BUSY = 0.02
"""Minimum share of a core that a busy process has used since the last look."""
TITLES = {
    "ray::RolloutEngine": Part.engine,
    "VLLM::EngineCore": Part.core,
    "ray::ToolExecutor": Part.tools,
    "ray::TeacherTeam": Part.teacher,
    "ray::TrajectoryBuffer": Part.buffer,
    "ray::RayTrainWorker": Part.rank,
    "ray::TrainController": Part.controller,
    "ray::WeightDirectory": Part.directory,
    "ray::WeightHolder": Part.holder,
    "ray::ToolDispatcher": Part.dispatcher,
    "ray::Site": Part.site,
}
"""Parts by the titles that Ray and vLLM give to processes."""
STARTING = ".__init__"
"""End of the title of an actor that is still starting."""


def part_of(title: str) -> Part | None:
    """The part with this command line, such as "ray::ToolExecutor.start"; None for another process, or one that is
    still starting."""
    name = title.split(" ")[0].strip()
    actor, _, _ = name.partition(".")
    return None if name.endswith(STARTING) else TITLES.get(actor)


class Below:
    """Observes the descendants of some processes; each look is compared with the previous one."""

    def __init__(self) -> None:
        self._before: dict[psutil.Process, tuple[float, float]] = {}
        """For each process, the time of the last look and the CPU seconds that it had used by then."""
        self._now: dict[psutil.Process, tuple[float, float]] = {}

    def look_below(self, now: float, root: int) -> Iterator[tuple[Seen, psutil.Process]]:
        """The parts of the run among all descendants of `root`, except stopped ones."""
        for process in descendants(root):
            with suppress(psutil.Error):
                part = part_of(" ".join(process.cmdline()))
                if part is not None and runs(process):
                    busy = self._is_busy(process, now) or part in WAITING
                    yield Seen(key_of(process), part, busy), process

    def look_at(self, now: float, pid: int, part: Part) -> Iterator[tuple[Seen, psutil.Process]]:
        """One process whose part is known, unless it is stopped or has ended."""
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if runs(process):
                yield Seen(key_of(process), part, self._is_busy(process, now)), process

    def looked(self) -> None:
        """Ends a look; the next one is compared with it."""
        self._before, self._now = self._now, {}

    def _is_busy(self, process: psutil.Process, now: float) -> bool:
        times = process.cpu_times()
        taken = times.user + times.system
        since, before = self._before.get(process, (now, taken))
        self._now[process] = now, taken
        return now > since and (taken - before) / (now - since) >= BUSY


def runs(process: psutil.Process) -> bool:
    return process.status() not in (psutil.STATUS_STOPPED, psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)


def descendants(root: int) -> list[psutil.Process]:
    """All descendants of a process; an empty list if it has ended."""
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(root).children(recursive=True)
    return []


def key_of(process: psutil.Process) -> str:
    return f"{process.pid}@{process.create_time():.2f}"


def send(process: psutil.Process, number: signal.Signals) -> None:
    """Sends a signal; does nothing if the process has ended, even if another one has its id by now."""
    with suppress(psutil.NoSuchProcess):
        process.send_signal(number)


def end(pid: int) -> None:
    """Kills a process and all of its descendants, as when its machine fails."""
    with suppress(psutil.NoSuchProcess):
        whole = psutil.Process(pid)
        for process in [whole, *whole.children(recursive=True)]:
            send(process, signal.SIGKILL)
