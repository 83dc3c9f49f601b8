"""Runs a Python program in a sandbox.

    Sandbox ── warm: a fork of the zygote (zygote_host.py, zygote.py)
           ├── cold: a bubblewrap and an interpreter of its own (process.py)
           └── none: an interpreter with limits and nothing else, only with `kind: none` (process.py)

Covered, warm and cold: new namespaces for users, processes, mounts, network, IPC and host name; no network interface
except a private loopback; no inherited environment or file descriptor; a file system that contains the system's
libraries, the base interpreter and the operator's packages read-only, an empty workspace in memory, and no /proc;
limits on CPU time, wall time, address space, files, threads, open descriptors and output. A seccomp filter (filter.py)
allows only the listed system calls: threads but no further process, so that limits on the one process are limits on the
run.

Kernel memory of a program (sockets, empty files, tables) is not in its address space. Its own cgroup (cgroup.py) counts
that too, if one can be made. Otherwise the program may make no sockets except connected pairs, and no threads if the
kernel does not count them, as for root (containment.py).

Why a warm run is no weaker: the zygote never sees a program, only descriptors and limits. Its child makes all of the
above anew, gives up all capabilities in a last user namespace, and only then runs the program, with every other
descriptor closed. Zygote and program share only copy-on-write memory and files that neither can write. The zygote has
no process id in the program's namespace. Process 1 there is ours, without capabilities too: the kernel blocks signals
to it, and the filter all other calls that take a process id. The seed of string hashes and the memory addresses are the
same for all forks of one zygote, and reveal nothing of other runs. A program that walks up its stack finds the zygote's
frames above its own.

Not covered: bugs of the kernel and, in a cold run, the death of this process during the few milliseconds in which
bubblewrap starts.
"""

import asyncio
import logging
import signal
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from coa.errors import ToolDown, UserError
from coa.tools.base import PLAIN
from coa.tools.layouts import LAYOUTS, Output
from coa.tools.sandbox.cgroup import MIB, Group, Groups
from coa.tools.sandbox.command import interpreter_of
from coa.tools.sandbox.containment import place_of_cgroups, threads_counted
from coa.tools.sandbox.filter import program_filter
from coa.tools.sandbox.process import cold, unconfined
from coa.tools.sandbox.run import FLOOD_BYTES, Confines, Ended, RunLimits, Running, last_line, watch
from coa.tools.sandbox.zygote_host import Zygote

SOURCE_BYTES = 1 << 20
"""Maximum bytes of a program that is run."""

_log = logging.getLogger(__name__)


class Kind(Enum):
    """The kind of protection against a program."""

    bubblewrap = "bubblewrap"
    none = "none"
    """No protection: the program has all rights of the user."""


@dataclass(frozen=True)
class SandboxConfig(RunLimits):
    """Settings of the sandbox. The limits are those of the tool `code`; tests of programs have their own
    (`tools.programs`)."""

    kind: Kind = Kind.bubblewrap
    """Isolation of programs: bubblewrap runs them in a sandbox; none does not isolate them, so that a program has all
    rights of the user."""
    warm: bool = True
    """Whether programs are forked from a running interpreter, which is faster than starting one for each program but
    needs more rights on the machine."""
    packages: str | None = None
    """Folder of a virtual environment whose packages programs may import; None allows only the standard library."""
    threads: int = 64
    """Maximum threads of a program."""
    cores: float = 1.0
    """Maximum number of CPU cores that a program may use; only enforced if the program has a cgroup."""
    cgroup: bool = True
    """Whether each program gets its own cgroup, if the system allows one to be created."""

    PATHS: ClassVar = ("packages",)


def outcome(ended: Ended, limits: RunLimits) -> Output:
    """The observation of a run: the output and, after a failure, the failure's last line."""
    return Output(ended.status, ended.stdout.rstrip("\n"), "" if ended.status == 0 else _failure(ended, limits))


def _failure(ended: Ended, limits: RunLimits) -> str:
    if ended.flooded:
        return f"stopped: printed more than {FLOOD_BYTES // MIB} MiB"
    if ended.status is None:
        return f"stopped: over the limit of {limits.wall_s:g} s"
    if ended.status == 128 + signal.SIGXCPU:
        return f"stopped: over the limit of {limits.cpu_s} s of CPU time"
    last = last_line(ended.stderr)
    if last.startswith("MemoryError"):
        return f"{last}: over the limit of {limits.memory_mib} MiB"
    if ended.status == 128 + signal.SIGKILL:
        return "stopped: killed, out of CPU time or memory"
    return last or f"exit status {ended.status}"


class Sandbox:
    """`await Sandbox(SandboxConfig()).run("print(input())", stdin="7")` is "7". Belongs to one event loop."""

    def __init__(self, config: SandboxConfig) -> None:
        self._config = config
        self._interpreter = interpreter_of(config.packages)
        self._groups: Groups | None = None
        self._zygote: Zygote | None = None
        self._starting = asyncio.Lock()

    async def run(self, program: str, stdin: str = "", layout: str = PLAIN) -> str:
        """The text for the policy; raises ToolDown if the sandbox itself could not work."""
        return LAYOUTS[layout].output(outcome(await self.execute(program, stdin), self._config))

    async def execute(self, program: str, stdin: str = "", limits: RunLimits | None = None) -> Ended:
        """Runs the program and returns how it ended. limits: None for those of the configuration. Raises ToolDown."""
        limits = limits or self._config
        # Other invalid text is passed to the interpreter unchanged, whose error message explains it best.
        source = program.encode(errors="surrogatepass")
        if len(source) > SOURCE_BYTES:
            return Ended(1, "", f"the program is longer than {SOURCE_BYTES} bytes")
        if b"\0" in source:  # Python before 3.11.4 would run the program up to there
            return Ended(1, "", "SyntaxError: source code cannot contain null bytes")
        try:
            with ExitStack() as held:
                confines = self._confine(limits, held)
                given = source, stdin.encode(errors="surrogatepass"), limits
                async with await self._start(*given, confines) as running:
                    return await watch(running, limits, confines.group)
        except OSError as error:  # this process has no descriptors, processes or memory left
            raise ToolDown(f"no sandbox: {error}") from error

    async def close(self) -> None:
        """Ends the zygote and its programs, and removes its cgroups; a later run starts another zygote."""
        if self._zygote is not None:
            self._zygote.end()
        if self._groups is not None:
            self._groups.close()
            self._groups = None

    def _confine(self, limits: RunLimits, held: ExitStack) -> Confines:
        """The restrictions of a program, with a cgroup that is returned when `held` is closed."""
        config = self._config
        place = place_of_cgroups() if config.cgroup and config.kind is Kind.bubblewrap else None
        group: Group | None = None
        if place is not None:
            if self._groups is None:
                self._groups = Groups(place, threads=config.threads, cores=config.cores)
            group = held.enter_context(self._groups.borrowed((limits.memory_mib + limits.files_mib) * MIB))
        counted = group is not None
        filter = program_filter(sockets=counted, threads=counted or threads_counted())
        return Confines(filter, config.threads + 1, group)

    async def _start(
        self, program: bytes, stdin: bytes, limits: RunLimits, confines: Confines
    ) -> AbstractAsyncContextManager[Running]:
        if self._config.kind is Kind.none:
            _log.warning("a program runs without a sandbox: tools.sandbox.kind is none")
            return unconfined(program, stdin, limits, self._interpreter)
        if not self._config.warm:
            return cold(program, stdin, limits, confines, self._interpreter)
        async with self._starting:
            if self._zygote is None or not self._zygote.alive:
                if self._zygote is not None:
                    self._zygote.end()
                self._zygote = await Zygote.start(self._interpreter, self._groups)
        return self._zygote.fork(program, stdin, limits, confines)


def require_bubblewrap(config: SandboxConfig | None = None) -> None:
    """Runs an empty program; raises UserError, with instructions, if this machine cannot sandbox programs."""
    sandbox = Sandbox(config or SandboxConfig())

    async def try_it() -> None:
        try:
            await sandbox.execute("")
        finally:
            await sandbox.close()

    try:
        asyncio.run(try_it())
    except ToolDown as down:
        raise UserError(
            f"programs need a sandbox (tools.sandbox; tools.sandbox.warm=false needs fewer rights): {down}"
        ) from down
