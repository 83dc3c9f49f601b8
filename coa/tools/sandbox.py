"""Runs a Python program in a bubblewrap sandbox.

Covered: own user, process and network namespaces without any interface, no inherited environment or file
descriptor, a file system that holds the system's libraries and the base interpreter read-only and an empty
workspace, and limits on CPU time, wall time, address space, files and output. A seccomp filter lets the program
start threads but no further process, so that limits on the one process are limits on the run.
Not covered: defects of the kernel.
"""

import asyncio
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coa.errors import ToolDown, UserError

INSTALL = "install bubblewrap and util-linux (Debian, Ubuntu: apt-get install bubblewrap util-linux)"
MIB = 1 << 20
SIGXCPU_STATUS = 128 + 24
SIGKILL_STATUS = 128 + 9


@dataclass(frozen=True)
class SandboxConfig:
    cpu_s: int = 5
    """Seconds of CPU time, all threads together."""
    wall_s: float = 7.0
    """Seconds of wall clock, from the start of the sandbox."""
    memory_mib: int = 512
    """Address space of the program."""
    files_mib: int = 16
    """All files of the workspace together; they live in memory."""
    output_bytes: int = 4096
    """What is kept of the output, half of it from its head and half from its tail."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: `Ended(status=1, stdout="7\\n", stderr="Traceback ... ValueError: x\\n")`."""

    status: int | None
    """Exit status, 128 + n for death by signal n; None if the wall limit ended it."""
    stdout: str
    stderr: str


def describe(ended: Ended, config: SandboxConfig) -> str:
    """What the policy reads: what was printed and, after a failure, its last line."""
    printed = ended.stdout.rstrip("\n")
    if ended.status == 0:
        return printed or "no output"
    failure = _failure(ended, config)
    return f"{printed}\n{failure}" if printed else failure


def _failure(ended: Ended, config: SandboxConfig) -> str:
    if ended.status is None:
        return f"stopped: over the limit of {config.wall_s:g} s"
    if ended.status == SIGXCPU_STATUS:
        return f"stopped: over the limit of {config.cpu_s} s of CPU time"
    lines = ended.stderr.strip().splitlines()
    last = lines[-1].strip() if lines else ""
    if last.startswith("MemoryError"):
        return f"{last}: over the limit of {config.memory_mib} MiB"
    if ended.status == SIGKILL_STATUS:
        return "stopped: killed, out of CPU time or memory"
    return last or f"exit status {ended.status}"


class Capped:
    """Keeps the head and the tail of a stream of bytes, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self._half = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._dropped = 0

    def add(self, data: bytes) -> None:
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


class Sandbox:
    """`await Sandbox(SandboxConfig()).run("print(input())", stdin="7")` is "7"."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._command = _command(config)

    async def run(self, program: str, stdin: str = "") -> str:
        """The text for the policy; raises ToolDown if the sandbox itself could not work."""
        return describe(await self.execute(program, stdin), self._config)

    async def execute(self, program: str, stdin: str = "") -> Ended:
        with (
            _memory_file("program", program.encode(errors="replace")) as source,
            _memory_file("stdin", stdin.encode(errors="replace")) as given,
            _memory_file("status") as status,
            _memory_file("filter", _one_process_filter()) as seccomp,
        ):
            numbers = {"SOURCE": str(source), "STATUS": str(status), "SECCOMP": str(seccomp)}
            arguments = [numbers.get(part, part) for part in self._command]
            try:
                process = await asyncio.create_subprocess_exec(
                    *arguments,
                    stdin=given,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env={},
                    pass_fds=(source, status, seccomp),
                )
            except FileNotFoundError as error:
                raise ToolDown(f"no sandbox: {error.filename} is missing; {INSTALL}") from error
            except OSError as error:
                raise ToolDown(f"no sandbox: {error}") from error
            stdout, stderr, in_time = await self._watch(process)
            # Only a program that was started leaves an exit code: what it prints cannot pass for a broken sandbox.
            started = b'"exit-code"' in os.pread(status, 4096, 0)
        if in_time and not started:
            raise ToolDown(f"the sandbox did not start: {stderr.strip()}")
        return Ended(status=process.returncode if in_time else None, stdout=stdout, stderr=stderr)

    async def _watch(self, process: asyncio.subprocess.Process) -> tuple[str, str, bool]:
        """Reads until the process ends or its time is over: stdout, stderr, whether it ended by itself."""
        assert process.stdout is not None
        assert process.stderr is not None
        outputs = Capped(self._config.output_bytes), Capped(self._config.output_bytes)
        tasks = [
            asyncio.ensure_future(_drain(process.stdout, outputs[0])),
            asyncio.ensure_future(_drain(process.stderr, outputs[1])),
            asyncio.ensure_future(process.wait()),
        ]
        in_time = False
        try:
            _, pending = await asyncio.wait(tasks, timeout=self._config.wall_s)
            in_time = not pending
        finally:
            # The kernel ends the whole process namespace with its first process, which dies with this one.
            if process.returncode is None:
                process.kill()
            await asyncio.gather(*tasks)
        return outputs[0].text(), outputs[1].text(), in_time


async def _drain(stream: asyncio.StreamReader, output: Capped) -> None:
    while data := await stream.read(1 << 16):
        output.add(data)


@contextmanager
def _memory_file(name: str, content: bytes = b"") -> Iterator[int]:
    descriptor = os.memfd_create(name)
    try:
        os.write(descriptor, content)
        os.lseek(descriptor, 0, os.SEEK_SET)
        yield descriptor
    finally:
        os.close(descriptor)


def _command(config: SandboxConfig) -> tuple[str, ...]:
    """The command line; SOURCE, STATUS and SECCOMP stand for the numbers of file descriptors."""
    python = (Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}").resolve()
    files = config.files_mib * MIB
    return (
        *(shutil.which("prlimit") or "prlimit", f"--cpu={config.cpu_s}:{config.cpu_s + 1}", "--core=0"),
        *(f"--as={config.memory_mib * MIB}", f"--fsize={files}", "--"),
        *(shutil.which("bwrap") or "bwrap", "--unshare-all", "--die-with-parent", "--new-session"),
        *("--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--clearenv"),
        *("--json-status-fd", "STATUS", "--seccomp", "SECCOMP"),
        *_system_binds(),
        *("--ro-bind", str(python), str(python)),
        *("--ro-bind", str(python.parent.parent / "lib"), str(python.parent.parent / "lib")),
        *("--dev-bind", "/dev/null", "/dev/null", "--size", str(files), "--tmpfs", "/tmp"),
        *("--file", "SOURCE", "/tmp/main.py", "--setenv", "HOME", "/tmp", "--chdir", "/tmp", "--remount-ro", "/"),
        *(str(python), "-I", "-S", "-E", "-B", "-X", "utf8", "/tmp/main.py"),
    )


def _system_binds() -> Iterator[str]:
    """The shared libraries and the loader's cache; on a merged-/usr system /lib is a link, and stays one."""
    for name in ("/usr/lib", "/usr/lib64", "/lib", "/lib64"):
        if os.path.islink(name):
            yield from ("--symlink", os.readlink(name), name)
        elif os.path.isdir(name):
            yield from ("--ro-bind", name, name)
    yield from ("--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache")


# Per machine: audit architecture, and the numbers of clone and of what is only ever a new process (fork, vfork).
_ARCHITECTURES = {"x86_64": (0xC000003E, 56, (57, 58)), "aarch64": (0xC00000B7, 220, ())}
_CLONE3 = 435
_CLONE_THREAD = 0x10000
_EPERM, _ENOSYS = 1, 38


@cache
def _one_process_filter() -> bytes:
    """A seccomp program (classic BPF) that refuses new processes and allows threads.

    clone3 keeps its flags in memory, where a filter cannot look; "no such call" makes the C library use clone.
    """
    audit, clone, forks = _ARCHITECTURES[os.uname().machine]
    load, equal, at_least, any_bit, ret = 0x20, 0x15, 0x35, 0x45, 0x06
    allow, kill, refuse = 0x7FFF0000, 0x80000000, 0x00050000

    def op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
        return struct.pack("<HBBI", code, if_true, if_false, value)

    # Offsets into struct seccomp_data: 0 the call's number, 4 the architecture, 16 the low half of argument 0.
    lines = [op(load, 4), op(equal, audit, 1, 0), op(ret, kill), op(load, 0)]
    # Numbers from 0x40000000 on are the x32 names of the same calls.
    lines += [op(at_least, 0x40000000, 0, 1), op(ret, refuse | _ENOSYS)]
    lines += [op(equal, _CLONE3, 0, 1), op(ret, refuse | _ENOSYS)]
    for number in forks:
        lines += [op(equal, number, 0, 1), op(ret, refuse | _EPERM)]
    lines += [op(equal, clone, 1, 0), op(ret, allow)]
    lines += [op(load, 16), op(any_bit, _CLONE_THREAD, 1, 0), op(ret, refuse | _EPERM), op(ret, allow)]
    return b"".join(lines)


def require_bubblewrap() -> None:
    """Raises UserError, with the way out, if programs cannot be sandboxed on this machine."""
    for tool in ("bwrap", "prlimit"):
        if shutil.which(tool) is None:
            raise UserError(f"running programs needs a sandbox, and {tool} is missing: {INSTALL}")
    if os.uname().machine not in _ARCHITECTURES:
        raise UserError(f"running programs needs a sandbox, and there is none for {os.uname().machine}")
    probe = subprocess.run(
        ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "true"], capture_output=True, text=True, check=False
    )
    if probe.returncode:
        raise UserError(f"running programs needs a sandbox, and bwrap fails: {probe.stderr.strip()}")
