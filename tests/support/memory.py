"""The peak memory of a command and of all processes that it starts."""

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
    """GiB at most of each process, by what it calls itself, the largest first: `VmHWM`, shared pages included."""
    together: float
    """GiB: the largest sum, at any time, of the peaks of the processes that lived then."""


def run_watched(command: Sequence[str], *, output: Path, limit_s: float) -> Watched:
    """Runs a command, with its output in a file; it is killed, with its children, after `limit_s`."""
    began, peaks, names, together = time.monotonic(), {}, {}, 0.0
    with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as process:
        parent = psutil.Process(process.pid)
        try:
            while process.poll() is None and time.monotonic() - began < limit_s:
                alive = [one for one in (parent, *parent.children(recursive=True)) if not _is_a_copy(one)]
                found = {one.pid: peak for one in alive if (peak := _peak(one)) is not None}
                names |= {one.pid: name for one in alive if (name := _name(one)) is not None}
                peaks |= found
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


def _peak(process: psutil.Process) -> float | None:
    """GiB; None of a process that has ended."""
    try:
        status = Path(f"/proc/{process.pid}/status").read_text()
    except OSError:
        return None
    lines = [line for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(lines[0].split()[1]) * 1024 / GIB if lines else None


def _name(process: psutil.Process) -> str | None:
    """The title that Ray and vLLM give a process, or the name of its program."""
    try:
        command = process.cmdline()
    except psutil.Error:
        return None
    return command[0].rpartition("/")[2][:40] if command else None
