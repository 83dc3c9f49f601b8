"""The memory that a command and all processes that it starts hold together.

What counts is anonymous and shared memory. Pages of files, such as libraries and weights that are read through a
mapping, are the system's cache: they are counted in every process that maps them, and given up when memory is needed.
"""

import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

GIB = 2**30
LOOK_S = 0.2


@dataclass(frozen=True, slots=True)
class Watched:
    returncode: int
    seconds: float
    peaks: dict[str, list[float]]
    """GiB that each process held at most, by what it calls itself, the largest first."""
    together: float
    """GiB that all processes held at most at one time."""


def run_watched(command: Sequence[str], *, output: Path, limit_s: float) -> Watched:
    """Runs a command, with its output in a file; it is killed, with its children, after `limit_s`."""
    began, peaks, names, together = time.monotonic(), {}, {}, 0.0
    with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        parent = psutil.Process(process.pid)
        try:
            while process.poll() is None and time.monotonic() - began < limit_s:
                alive = [one for one in (parent, *parent.children(recursive=True)) if not _is_a_copy(one)]
                found = {one.pid: held for one in alive if (held := _held(one)) is not None}
                names |= {one.pid: name for one in alive if (name := _name(one)) is not None}
                peaks |= {pid: max(held, peaks.get(pid, 0.0)) for pid, held in found.items()}
                together = max(together, sum(found.values()))
                time.sleep(LOOK_S)
        finally:
            if process.poll() is None:
                _kill([parent, *parent.children(recursive=True)])
    by_name: dict[str, list[float]] = {}
    for pid, peak in sorted(peaks.items(), key=lambda one: -one[1]):
        by_name.setdefault(names.get(pid, "?"), []).append(round(peak, 2))
    return Watched(process.returncode, time.monotonic() - began, by_name, together)


def _is_a_copy(process: psutil.Process) -> bool:
    """Whether it was forked and has not begun its own program yet: its memory is its parent's."""
    try:
        parent = process.parent()
        return parent is not None and process.cmdline() == parent.cmdline()
    except psutil.Error:
        return True


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _held(process: psutil.Process) -> float | None:
    """GiB; None of a process that has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return None
    kib = [int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon:", "RssShmem:"))]
    return sum(kib) * 1024 / GIB if kib else None


def _name(process: psutil.Process) -> str | None:
    """The title that Ray and vLLM give a process, or the name of its program."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return None
    return command[0].rpartition("/")[2][:40] if command else None
