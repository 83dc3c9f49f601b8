"""Runs a Python program in a sandbox.

    Sandbox ── warm: a fork of the zygote (zygote_host.py, zygote.py)
           ├── cold: a bubblewrap and an interpreter of its own (process.py)
           └── none: an interpreter with limits and nothing else, only with `kind: none` (process.py)

Covered, warm and cold: namespaces of its own for users, processes, mounts, network, IPC and host name; no network
interface but a loopback that is nobody else's; no inherited environment or file descriptor; a file system that holds
the system's libraries, the base interpreter and the operator's packages read-only and an empty workspace in memory, and
no /proc; limits on CPU time, wall time, address space, files, threads, open descriptors and output. A seccomp filter
(filter.py) allows what a list of system calls names (calls.py): threads but no further process, so that limits on the
one process are limits on the run.

What the kernel holds for a program is not in its address space: sockets, files without content, tables. A cgroup of its
own (cgroup.py) counts that too, where one can be made. Otherwise the program may make no sockets but connected pairs,
and no threads where the kernel does not count them, which is so for root (containment.py).

Why a warm run is no weaker: the zygote never sees a program, only descriptors and limits. Its child makes all of the
above anew, gives up every right in a last user namespace, and only then runs the program, with every other descriptor
closed. What zygote and program have in common is memory that is copied on write and files that nobody can write. The
zygote has no number in the program's namespace of processes. Process 1 there is ours, with no rights either: the kernel
keeps signals from it, and the filter all else that takes the number of a process. Two things are the same for all
forks of one zygote, and tell nothing of other runs: the seed of string hashes and the addresses of memory. A program
that walks up its stack finds the zygote's frames above its own.

Not covered: defects of the kernel. In a cold run also the death of this process in the few milliseconds in which
bubblewrap starts.
"""

import asyncio
import logging
import signal
from contextlib import AbstractAsyncContextManager, ExitStack
from dataclasses import dataclass
from enum import Enum

from coa.errors import ToolDown, UserError
from coa.tools.base import PLAIN
from coa.tools.layouts import LAYOUTS, Output
from coa.tools.sandbox.cgroup import MIB, Group, Groups
from coa.tools.sandbox.command import interpreter_of
from coa.tools.sandbox.containment import place_of_cgroups, threads_counted
from coa.tools.sandbox.filter import program_filter
from coa.tools.sandbox.process import cold, unconfined
from coa.tools.sandbox.run import Confines, Ended, RunLimits, Running, last_line, watch
from coa.tools.sandbox.zygote_host import Zygote

SOURCE_BYTES = 1 << 20
"""Bytes of the longest program that is run."""

_log = logging.getLogger(__name__)


class Kind(Enum):
    """The kind of protection against a program."""

    bubblewrap = "bubblewrap"
    none = "none"
    """No protection: the program may read, write and send whatever the user may."""


@dataclass(frozen=True)
class SandboxConfig(RunLimits):
    """How programs are run. The limits are those of the tool `code`; tests of programs have their own
    (`tools.programs`)."""

    kind: Kind = Kind.bubblewrap
    """bubblewrap isolates programs. none does not isolate them: a program may do whatever the user may."""
    warm: bool = True
    """Whether programs are forked from a running interpreter, which is faster, instead of starting one for each. false
    needs fewer rights."""
    packages: str | None = None
    """Folder of a virtual environment whose packages programs may import; None allows only the standard library."""
    threads: int = 64
    """Maximum threads of a program."""
    cores: float = 1.0
    """CPU cores that a program may use, if it has a cgroup."""
    cgroup: bool = True
    """Whether each program gets its own cgroup, if the system allows to create one."""


def outcome(ended: Ended, limits: RunLimits) -> Output:
    """What the policy sees of a run: what was printed and, after a failure, the failure's last line."""
    return Output(ended.status, ended.stdout.rstrip("\n"), "" if ended.status == 0 else _failure(ended, limits))


def _failure(ended: Ended, limits: RunLimits) -> str:
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
        """How the program ended. limits: those of the configuration if None. Raises ToolDown."""
        limits = limits or self._config
        # What is no text reaches the interpreter as it is: it says best what is wrong with it.
        source = program.encode(errors="surrogatepass")
        if len(source) > SOURCE_BYTES:
            return Ended(1, "", f"the program is longer than {SOURCE_BYTES} bytes")
        try:
            with ExitStack() as held:
                confines = self._confine(limits, held)
                given = source, stdin.encode(errors="surrogatepass"), limits
                async with await self._start(*given, confines) as running:
                    return await watch(running, limits, confines.group)
        except OSError as error:  # no descriptors, processes or memory left, for us
            raise ToolDown(f"no sandbox: {error}") from error

    async def close(self) -> None:
        """Ends the zygote and what runs in it, and removes its cgroups; a later run starts another."""
        if self._zygote is not None:
            self._zygote.end()
        if self._groups is not None:
            self._groups.close()
            self._groups = None

    def _confine(self, limits: RunLimits, held: ExitStack) -> Confines:
        """What holds a program, with a cgroup until `held` is closed."""
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
    """Runs an empty program; raises UserError, which says what to do, if none can be sandboxed on this machine."""
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
