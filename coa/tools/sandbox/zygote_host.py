"""The host's side of the zygote: starts it, asks it for forks, and ends it."""

import asyncio
import os
import socket
import struct
import subprocess
import weakref
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from io import FileIO
from typing import Self

from coa.errors import ToolDown
from coa.tools.sandbox.cgroup import MIB, Group, Groups
from coa.tools.sandbox.command import Interpreter, zygote_command
from coa.tools.sandbox.run import Confines, RunLimits, last_line, memory_file
from coa.tools.sandbox.zygote import NURSERY, READY, REQUEST

START_S = 30.0
"""Maximum seconds for a start, which takes milliseconds on an idle machine."""
SCM_CREDENTIALS = 2
CREDENTIALS = struct.Struct("=3i")
"""Process, user and group ids of the writer of a byte."""
HANDED_OVER = 8
"""Maximum number of requests that wait in the zygote's socket, whose buffer is limited."""


class Pipe:
    """The reading end of a pipe. Close it as a context manager, within the event loop that reads it.

    Not a transport of the event loop: uvloop's does not close at the end of the pipe but when it is garbage-collected,
    in any thread, and then closes its descriptor twice, which may belong to another file by then.
    """

    def __init__(self, end: FileIO) -> None:
        os.set_blocking(end.fileno(), False)
        self._end = end

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.get_running_loop().remove_reader(self._end.fileno())
        self._end.close()

    async def read(self, n: int, /) -> bytes:
        """Up to n bytes, as soon as there are some; b"" at the end. For one reader at a time."""
        while (data := self._end.read(n)) is None:
            await self._readable()
        return data

    async def _readable(self) -> None:
        loop, end = asyncio.get_running_loop(), self._end.fileno()
        readable = asyncio.Event()
        loop.add_reader(end, readable.set)
        await readable.wait()
        loop.remove_reader(end)


class Fork:
    """A program in a fork of the zygote; zygote.py describes the protocol of the lifeline."""

    def __init__(self, stdout: Pipe, stderr: Pipe, lifeline: socket.socket) -> None:
        self.stdout, self.stderr = stdout, stderr
        self._lifeline = lifeline
        self._confined = False
        self.pid: int | None = None

    async def confined(self) -> None:
        """Returns once the program is confined or its confinement has failed."""
        said, self.pid = await _heard_from(self._lifeline)
        self._confined = said == READY

    async def wait(self) -> int | None:
        status = await _receive_byte(self._lifeline)
        return status[0] if self._confined and status else None

    def kill(self) -> None:
        self._lifeline.shutdown(socket.SHUT_WR)


class Zygote:
    """The zygote's process, which lives until `end`, or until this object or this process is gone."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, groups: Groups | None) -> None:
        self._control = control
        self._permits = asyncio.Semaphore(HANDED_OVER)
        self._nurseries: dict[Group, socket.socket] = {}
        # The cgroups are kept until then, since only cgroups without processes can be removed.
        self.end = weakref.finalize(self, _end, process, control, self._nurseries, groups)
        """Kills the zygote, and with it all its programs; the first call returns what the zygote printed."""

    @classmethod
    async def start(cls, interpreter: Interpreter, groups: Groups | None) -> Self:
        """Starts a zygote for programs in these cgroups; raises ToolDown, with its output, if the start fails."""
        zygote = cls(*_spawn(interpreter), groups)
        try:
            async with asyncio.timeout(START_S):
                answer = await _receive_byte(zygote._control)
        except TimeoutError as error:
            raise ToolDown(f"the sandbox did not start within {START_S:g} s") from error
        if answer != READY:
            raise ToolDown(f"the sandbox did not start: {last_line(zygote.end() or '')}")
        return zygote

    @property
    def alive(self) -> bool:
        return _open(self._control)

    @asynccontextmanager
    async def fork(self, program: bytes, stdin: bytes, limits: RunLimits, confines: Confines) -> AsyncIterator[Fork]:
        """Starts a program; if the zygote does not answer, ends it and raises ToolDown."""
        lifeline, its_end = socket.socketpair()
        lifeline.setblocking(False)
        lifeline.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        with ExitStack() as ours:
            ours.enter_context(lifeline)
            async with self._permits:
                control = self._control if confines.group is None else await self._nursery(confines.group)
                with its_end, memory_file("program", program) as source, memory_file("stdin", stdin) as input:
                    ends = _ask(control, limits, confines, (source, input), its_end.fileno())
                stdout, stderr = (ours.enter_context(Pipe(end)) for end in ends)
                fork = Fork(stdout, stderr, lifeline)
                try:
                    async with asyncio.timeout(START_S):
                        await fork.confined()
                except TimeoutError as error:
                    self.end()
                    raise ToolDown(f"the sandbox does not answer within {START_S:g} s") from error
            yield fork

    async def _nursery(self, group: Group) -> socket.socket:
        """The socket of the nursery in a cgroup, which is started if there is none."""
        ours = self._nurseries.get(group)
        if ours is not None and _open(ours):
            return ours
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        self._nurseries[group] = ours
        with ExitStack() as theirs_too:
            theirs_too.enter_context(theirs)
            entrances = [theirs_too.enter_context(FileIO(path, "r+")).fileno() for path in group.entrances]
            socket.send_fds(self._control, [NURSERY], [theirs.fileno(), *entrances])
        try:
            async with asyncio.timeout(START_S):
                answer = await _receive_byte(ours)
        except TimeoutError as error:
            self.end()
            raise ToolDown(f"the sandbox does not answer within {START_S:g} s") from error
        if answer != READY:
            raise ToolDown("a process of the sandbox could not be moved to its cgroup")
        group.staying = 1
        return ours


def _ask(
    control: socket.socket, limits: RunLimits, confines: Confines, given: tuple[int, int], lifeline: int
) -> tuple[FileIO, FileIO]:
    """Sends a request for a fork, with its source and input. Returns the pipes of its output and errors."""
    sizes = limits.memory_mib * MIB, limits.files_mib * MIB
    request = REQUEST.pack(limits.cpu_s, *sizes, confines.processes)
    (stdout, its_stdout), (stderr, its_stderr) = _pipe(), _pipe()
    with its_stdout, its_stderr:
        descriptors = [*given, its_stdout.fileno(), its_stderr.fileno(), lifeline]
        socket.send_fds(control, [request, confines.filter], descriptors)
    return stdout, stderr


def _spawn(interpreter: Interpreter) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Starts bubblewrap with the zygote inside. Returns the process and this end of the zygote's socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    # Files of the same kinds as a program's, since the interpreter inspects them only at its start.
    with theirs, memory_file("stdin") as stdin:
        process = subprocess.Popen(
            zygote_command(interpreter, theirs.fileno()),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={},
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # not interrupted by Ctrl-C in the terminal
        )
    return process, ours


def _pipe() -> tuple[FileIO, FileIO]:
    reader, writer = os.pipe()
    return FileIO(reader, "rb"), FileIO(writer, "wb")


async def _receive_byte(end: socket.socket) -> bytes:
    """One byte from the other end; b"" if that is closed."""
    try:
        return await asyncio.get_running_loop().sock_recv(end, 1)
    except ConnectionResetError:
        return b""


async def _heard_from(end: socket.socket) -> tuple[bytes, int | None]:
    """One byte from the other end, and the id of the process that wrote it, as reported by the kernel."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(end, readable.set)
    try:
        await readable.wait()
        said, ancillary, _, _ = end.recvmsg(1, socket.CMSG_SPACE(CREDENTIALS.size))
    except ConnectionResetError:
        return b"", None
    finally:
        loop.remove_reader(end)
    writers = [data for level, kind, data in ancillary if (level, kind) == (socket.SOL_SOCKET, SCM_CREDENTIALS)]
    return said, CREDENTIALS.unpack(writers[0])[0] if said and writers else None


def _open(end: socket.socket) -> bool:
    """Whether the process at the other end is alive."""
    try:
        return end.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except OSError:  # closed by `end`
        return False


def _end(
    process: subprocess.Popen[bytes], control: socket.socket, nurseries: dict[Group, socket.socket], _: Groups | None
) -> str:
    for end in (control, *nurseries.values()):
        end.close()
    process.kill()
    process.wait()
    assert process.stdout is not None
    with process.stdout as said:
        return said.read().decode(errors="replace")
