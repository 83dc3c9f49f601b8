"""Supervises one run of a program: its limits, its output, and how it ended."""

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coa.errors import ToolDown
from coa.tools.sandbox.cgroup import MIB, Group

KILLED = 128 + signal.SIGKILL
KILLED_S = 10.0
"""Maximum seconds to wait for killed processes to end."""


@dataclass(frozen=True)
class RunLimits:
    """Limits of one run of a program."""

    cpu_s: int = 5
    """Maximum CPU seconds of a program, over all its threads."""
    wall_s: float = 7.0
    """Maximum wall-clock seconds of a program, from its start."""
    busy_s: float = 0.0
    """Additional wall-clock seconds for a program if it, or this process, waited for a CPU core for more than a quarter
    of `wall_s`."""
    memory_mib: int = 512
    """Maximum address space of a program, in MiB."""
    files_mib: int = 16
    """Maximum memory for the files in a program's workspace, in MiB."""
    output_bytes: int = 4096
    """Maximum bytes of output that are kept: half from its beginning, half from its end."""


@dataclass(frozen=True, slots=True)
class Confines:
    """Restrictions of a program in addition to its limits."""

    filter: bytes
    """Seccomp filter of system calls."""
    processes: int
    """Maximum number of processes and threads of the user in the program's namespace; not enforced for root."""
    group: Group | None
    """The program's cgroup; None if it has none."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: `Ended(status=1, stdout="7\\n", stderr="Traceback ... ValueError: x\\n")`."""

    status: int | None
    """Exit status, 128 + n for death by signal n; None if the wall limit or a flood ended it."""
    stdout: str
    stderr: str
    waited_s: float = 0.0
    """Seconds that a program ended by the wall limit, or this process, was ready to run but waited for a core."""
    flooded: bool = False
    """Whether it was ended because it printed more than FLOOD_BYTES; it has no status then."""


class Readable(Protocol):
    """One end of a pipe."""

    async def read(self, n: int, /) -> bytes:
        """Up to n bytes, as soon as there are some; b"" at the end."""
        ...


class Running(Protocol):
    """A started program, in a warm or a new interpreter."""

    @property
    def stdout(self) -> Readable: ...

    @property
    def stderr(self) -> Readable: ...

    @property
    def pid(self) -> int | None:
        """The program's process id in this process's namespace; None if it is unknown."""
        ...

    async def wait(self) -> int | None:
        """The program's exit status; None if the sandbox around it ended instead."""
        ...

    def kill(self) -> None:
        """Ends the program and all processes that it started; does nothing if it has ended."""
        ...


FLOOD_BYTES = 32 * MIB
"""Bytes that a program may print on stdout, and on stderr, of which most are thrown away."""


class Capped:
    """Keeps the head and the tail of a stream of bytes, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0
        self.received = 0
        """Bytes of the stream so far."""

    def add(self, data: bytes) -> None:
        self.received += len(data)
        room = self._half - len(self._head)
        self._head += data[:room]
        self._tail += data[room:]
        excess = len(self._tail) - self._half
        if excess > 0:
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        gap = f"\n[{self._dropped} bytes left out]\n".encode() if self._dropped else b""
        return bytes(self._head + gap + self._tail).decode(errors="replace")


async def watch(running: Running, limits: RunLimits, group: Group | None = None) -> Ended:
    """Reads until the program ends or its time is over; raises ToolDown if the sandbox ended before the program, unless
    its cgroup ran out of memory."""
    stdout, stderr = Capped(limits.output_bytes), Capped(limits.output_bytes)
    end = asyncio.ensure_future(running.wait())
    tasks = [
        asyncio.ensure_future(_drain(running, running.stdout, stdout)),
        asyncio.ensure_future(_drain(running, running.stderr, stderr)),
        end,
    ]
    own_s = _own_delay_s()

    def delay_s() -> float:
        return max(run_delay_s(running.pid), _own_delay_s() - own_s)

    in_time, waited_s = False, 0.0
    try:
        _, pending = await asyncio.wait(tasks, timeout=limits.wall_s)
        if pending and limits.busy_s and delay_s() > limits.wall_s / 4:
            _, pending = await asyncio.wait(tasks, timeout=limits.busy_s)
        in_time = not pending
        waited_s = 0.0 if in_time else delay_s()
    finally:
        running.kill()
        # All processes are dead by now, except that without a sandbox one may have escaped and keep an output open.
        for task in (await asyncio.wait(tasks, timeout=KILLED_S))[1]:
            task.cancel()
    if max(stdout.received, stderr.received) > FLOOD_BYTES:
        return Ended(None, stdout.text(), stderr.text(), flooded=True)
    status = end.result() if in_time else None
    # The kernel's OOM killer may end one of our processes with the program, or instead of it.
    out_of_memory = status in (None, KILLED) and group is not None and group.killed()
    if in_time and status is None and out_of_memory:
        status = KILLED
    if in_time and status is None:
        raise ToolDown(f"the sandbox did not work: {last_line(stderr.text())}")
    return Ended(status, stdout.text(), stderr.text(), waited_s)


def run_delay_s(pid: int | None) -> float:
    """Seconds that a process was ready to run but waited for a core: the maximum over its threads."""
    waits = [0.0]
    with suppress(OSError):
        for schedule in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            waits.append(int(schedule.read_text().split()[1]) / 1e9)
    return max(waits)


def _own_delay_s() -> float:
    """The same of this thread, which gives programs their input and reads what they print."""
    try:
        return int(Path(f"/proc/self/task/{threading.get_native_id()}/schedstat").read_text().split()[1]) / 1e9
    except OSError:  # a kernel that does not count it
        return 0.0


def last_line(text: str) -> str:
    """The last line of a text, which is the error in a traceback; "" for an empty text."""
    lines = text.strip().splitlines()
    return lines[-1].strip() if lines else ""


async def _drain(running: Running, stream: Readable, output: Capped) -> None:
    """Reads to the end. A flood ends the program: how long it would go on depends on who reads it."""
    while data := await stream.read(1 << 16):
        output.add(data)
        if output.received > FLOOD_BYTES:
            running.kill()


@contextmanager
def memory_file(name: str, content: bytes = b"") -> Iterator[int]:
    """The descriptor of a new file in memory with this content, positioned at its beginning."""
    descriptor = os.memfd_create(name)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)
