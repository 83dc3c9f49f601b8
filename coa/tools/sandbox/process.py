"""Runs programs in child processes of this one: each in its own bubblewrap, or only with limits."""

import asyncio
import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from coa.tools.sandbox.command import Interpreter, bare_command, cold_command
from coa.tools.sandbox.run import Confines, RunLimits, memory_file


class Child:
    """A started program; implements `coa.tools.sandbox.run.Running`."""

    def __init__(self, process: asyncio.subprocess.Process, notes: int | None) -> None:
        """notes: descriptor of the file to which bubblewrap writes its first child and the program's exit code."""
        assert process.stdout is not None
        assert process.stderr is not None
        self.stdout, self.stderr = process.stdout, process.stderr
        self._process = process
        self._notes = notes

    @property
    def pid(self) -> int | None:
        if self._notes is None:
            return self._process.pid
        first = _read(self._notes).get("child-pid")
        with suppress(OSError):  # it has ended
            inside = Path(f"/proc/{first}/task/{first}/children").read_text().split()
            return int(inside[0]) if inside else first
        return None

    async def wait(self) -> int | None:
        code = await self._process.wait()
        # bubblewrap writes an exit code only if the program was started, so no output can imitate a broken sandbox.
        if self._notes is not None and "exit-code" not in _read(self._notes):
            return None
        return code if code >= 0 else 128 - code

    def kill(self) -> None:
        """Kills the process group, and process 1 inside the sandbox, with which the kernel ends all its processes.

        For a moment, bubblewrap's child has left the group but does not yet die with bubblewrap.
        """
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                if self._notes is not None and (inside := _read(self._notes).get("child-pid")):
                    os.kill(inside, signal.SIGKILL)
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)


def _read(notes: int) -> dict[str, int]:
    """{"child-pid": 17, .., "exit-code": 0}, as far as bubblewrap has written it; it writes one object per line."""
    *lines, _ = os.pread(notes, 4096, 0).decode().split("\n")
    return {key: value for line in lines for key, value in json.loads(line).items()}


@asynccontextmanager
async def cold(
    program: bytes, stdin: bytes, limits: RunLimits, confines: Confines, interpreter: Interpreter
) -> AsyncIterator[Child]:
    """Starts the program in its own bubblewrap."""
    with (
        memory_file("program", program) as source,
        memory_file("stdin", stdin) as input,
        memory_file("notes") as notes,
        memory_file("filter", confines.filter) as seccomp,
    ):
        command = cold_command(interpreter, limits, confines, source=source, notes=notes, seccomp=seccomp)
        yield await _spawn(command, input, {}, notes=notes, pass_fds=(source, notes, seccomp))


@asynccontextmanager
async def unconfined(program: bytes, stdin: bytes, limits: RunLimits, interpreter: Interpreter) -> AsyncIterator[Child]:
    """Starts the program without a sandbox, in a temporary folder. It does not get the environment variables of this
    process; it may access everything else."""
    with TemporaryDirectory(prefix="program-") as folder, memory_file("stdin", stdin) as input:
        path = Path(folder, "main.py")
        path.write_bytes(program)
        yield await _spawn(bare_command(interpreter, limits, str(path)), input, {"HOME": folder}, folder)


async def _spawn(
    command: tuple[str, ...],
    stdin: int,
    environment: Mapping[str, str],
    folder: str | None = None,
    notes: int | None = None,
    pass_fds: tuple[int, ...] = (),
) -> Child:
    """Starts a command in a new process group."""
    spawning = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    )
    try:
        return Child(await asyncio.shield(spawning), notes)
    except asyncio.CancelledError:
        Child(await spawning, notes).kill()  # asyncio would kill only the process that it started
        raise
