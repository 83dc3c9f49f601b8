"""What a sandbox does, warm and cold alike; what it withstands is in test_sandbox_attacks.py."""

import asyncio
import gc
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import uvloop
from omegaconf import OmegaConf

from coa.config import load
from coa.errors import ToolDown, UserError
from coa.tools.sandbox import command as sandbox_command
from coa.tools.sandbox import filter as sandbox_filter
from coa.tools.sandbox.cgroup import MIB
from coa.tools.sandbox.run import Capped, Ended, RunLimits
from coa.tools.sandbox.sandbox import SOURCE_BYTES, Kind, Sandbox, SandboxConfig, outcome, require_bubblewrap
from tests.support.patience import soon, until
from tests.support.sandboxes import QUICK, Box, box, commands_with, sandboxed

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
COLD, WARM = replace(QUICK, warm=False), QUICK
PATHS = {"cold": COLD, "warm": WARM}


@pytest.fixture(scope="module", params=PATHS.values(), ids=list(PATHS))
def either(request: pytest.FixtureRequest) -> Iterator[Box]:
    with box(request.param) as made:
        yield made


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[Box, Box]]:
    with box(COLD) as cold, box(WARM) as warm:
        yield cold, warm


def test_what_a_program_prints_comes_back(either: Box) -> None:
    assert either.output("print(3 * 4 - 5)\nprint('é')") == "7\né"


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_program_leaves_no_descriptor_open(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Nor one that the garbage collector is to close: by then its number may be another's. uvloop is what actors of
    Ray run on."""

    async def go() -> None:
        sandbox = Sandbox(replace(WARM, cgroup=False))  # cgroups, with a descriptor each, stay for later programs
        await sandbox.run("print(1)")
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for pause_s in (0.0, 0.001, 0.005, 0.02, 5.0):
            tasks = [asyncio.ensure_future(sandbox.run("print(1)")) for _ in range(4)]
            await asyncio.wait(tasks, timeout=pause_s)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
        await until(lambda: len(os.listdir("/proc/self/fd")) <= before)  # others in this process may open some, too
        await sandbox.close()

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(go())
    finally:
        gc.enable()


def test_a_program_that_prints_nothing_says_so(either: Box) -> None:
    assert either.loop.run(either.sandbox.run("x = 1")) == "no output"


def test_standard_input_reaches_the_program(either: Box) -> None:
    assert either.output("print(sum(map(int, input().split())))", stdin="1 2 3\n") == "6"


def test_input_that_is_not_read_does_no_harm(either: Box) -> None:
    assert either.output("print(1)", stdin="x" * 8_000_000) == "1"


def test_a_failure_shows_what_was_printed_and_the_last_line_of_the_traceback(either: Box) -> None:
    assert either.output("print(1)\nprint([][0])") == "1\nIndexError: list index out of range"
    assert either.output("def") == "SyntaxError: invalid syntax"
    assert either.output("import sys; sys.exit(3)") == "exit status 3"


SAME = {
    "a value": "print([1] * 3)",
    "a traceback": "def f(x):\n    return 1 / x\nprint(f(1))\nf(0)",
    "a chain of exceptions": "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise ValueError('é') from e",
    "a syntax error": "x = 1\nif x\n    y",
    "an encoding": "# -*- coding: latin-1 -*-\nprint('\xe9')",
    "a wrong encoding": "# -*- coding: no-such -*-\nprint(1)",
    "a null byte": "print(1)\0",
    "half a surrogate pair": "print('\ud800')",
    "an exit with a text": "import sys; sys.exit('text')",
    "an exit in a thread": "import sys, threading as t; a = t.Thread(target=sys.exit); a.start(); a.join(); print(1)",
    "a thread that goes on": "import threading, time\nthreading.Timer(0.05, print, [2]).start(); print(1)",
    "what is done at exit": "import atexit; atexit.register(print, 'end'); 1 / 0",
    "what is left to the collector": "class C:\n    def __del__(self): print('gone')\nc = C()\nraise SystemExit(4)",
    "what is left in a buffer": "out = open(1, 'w', closefd=False); out.write('x' * 9); print('y', end='')",
    "an interrupt": "raise KeyboardInterrupt",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "signal handlers": "import signal as s; print([s.getsignal(n) for n in range(1, 65)], s.pthread_sigmask(0, []))",
    "an abort": "import os; os.abort()",
    "a silent exit": "import os; print(1, flush=True); os._exit(9)",
    "a warning": "import warnings; warnings.warn('w')",
    "a hook": "import sys; sys.excepthook = lambda *a: print('hook', a[0]); 1 / 0",
    "pickling": "import pickle\nclass A: pass\nprint(type(pickle.loads(pickle.dumps(A()))))",
    "the recursion limit": "import sys; print(sys.getrecursionlimit())",
    "the arguments": "import sys; print(sys.argv, sys.orig_argv, sys.flags, sys.path, sys.executable)",
    "the modules": "import sys; print(sorted(sys.modules))",
    "the names": "print(sorted(globals()), __name__, __file__, __spec__, __builtins__, __annotations__)",
    "the streams": "from sys import *\nfor f in stdin, stdout, stderr: print(f, f.errors, f.line_buffering)",
    "the environment": "import os; print(sorted(os.environ.items()), os.getcwd(), os.listdir('/'), os.listdir())",
    "the process": "import os; print(os.getpid(), os.getppid(), os.getuid(), os.getgid(), os.umask(0))",
    "the limits": "import resource as r; print([r.getrlimit(getattr(r, n)) for n in dir(r) if n[:7] == 'RLIMIT_'])",
    "the interfaces": "import socket; print(socket.if_nameindex(), socket.gethostname())",
    "the open files": "import os; print([os.fstat(n).st_mode for n in range(3)]); os.fstat(3)",
    "the workspace": "import os; print([(s.st_mode, s.st_uid, s.st_gid) for s in map(os.stat, ('.', 'main.py', '/'))])",
    "an event loop": "import asyncio\nasync def f(): return 5\nprint(asyncio.run(f()))",
    "a server of its own": "from socket import *; s = create_server(('', 0)); create_connection(s.getsockname())",
    "native code": "import ctypes; print(ctypes.CDLL(None).strlen(b'four'))",
    "arithmetic": "from decimal import *; print(getcontext().prec, Decimal(1) / 3); import math; print(math.pi)",
}


@pytest.mark.parametrize("name", SAME)
def test_a_warm_run_is_a_cold_run(name: str, both: tuple[Box, Box]) -> None:
    cold, warm = both
    assert warm.execute(SAME[name], "in\n") == cold.execute(SAME[name], "in\n")


def test_the_environment_is_empty(either: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "1")
    assert either.output("import os; print(sorted(os.environ))") == "['HOME', 'LC_CTYPE', 'PWD']"


def test_no_descriptor_of_the_parent_is_open(either: Box) -> None:
    program = "import os\nfor n in range(3, 256):\n    try: os.fstat(n); print(n)\n    except OSError: pass"
    assert either.output(program) == ""


def test_only_the_workspace_can_be_written(either: Box) -> None:
    assert either.output("open('note', 'w').write('x'); print(open('note').read())") == "x"
    assert "Read-only file system" in either.output("open('/note', 'w')")


def test_a_run_does_not_see_the_files_of_another(either: Box) -> None:
    either.output("open('note', 'w').write('x')")
    assert either.output("import os; print(os.listdir())") == "['main.py']"


def test_the_wall_limit_ends_a_program_that_sleeps(either: Box) -> None:
    program = "import time; print(1, flush=True); time.sleep(3600)"
    assert either.output(program, wall_s=2.0) == "1\nstopped: over the limit of 2 s"


def test_the_cpu_limit_ends_a_program_that_spins(either: Box) -> None:
    assert either.output("while True: pass") == "stopped: over the limit of 1 s of CPU time"


def test_the_wall_limit_holds_for_a_program_that_closed_its_outputs(either: Box) -> None:
    program = "import os, time; os.close(1); os.close(2); time.sleep(60)"
    assert either.output(program, wall_s=0.5) == "stopped: over the limit of 0.5 s"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_flood_ends_its_program(either: Box, stream: str) -> None:
    program = f"import sys\nwhile True: sys.{stream}.write('x' * 1000)"
    assert either.output(program, wall_s=60.0, cpu_s=60).endswith("stopped: printed more than 32 MiB")
    assert either.output("print('x' * (31 << 20))", wall_s=60.0, cpu_s=60).endswith("bytes left out]\n" + "x" * 2047)


def test_the_memory_limit_holds(either: Box) -> None:
    assert either.output("x = bytearray(1 << 30)") == "MemoryError: over the limit of 256 MiB"


def test_a_run_can_have_limits_of_its_own(either: Box) -> None:
    async def run() -> tuple[Ended, Ended]:
        program = "x = bytearray(300 << 20); print('y' * 10_000, end='')"
        roomy = RunLimits(memory_mib=1024, output_bytes=20_000)
        return await either.sandbox.execute(program, limits=roomy), await either.sandbox.execute(program)

    roomy, usual = either.loop.run(run())
    assert roomy == Ended(0, "y" * 10_000, "")
    assert usual.stderr.endswith("MemoryError\n")


def test_threads_can_be_started(either: Box) -> None:
    assert either.output("import threading as t; x = t.Thread(target=print, args=(1,)); x.start(); x.join()") == "1"


def test_what_is_no_text_is_said_to_be_none(either: Box) -> None:
    assert "null bytes" in either.output("print(1)\0")
    assert either.output("print('\ud800')").startswith("SyntaxError: Non-UTF-8 code starting with")
    assert either.output("import sys; print(len(sys.stdin.buffer.read()))", stdin="\ud800") == "3"


def test_a_program_of_many_megabytes_is_refused(either: Box) -> None:
    assert either.output("#" * 10_000_000) == f"the program is longer than {SOURCE_BYTES} bytes"
    assert either.output("print(1)  " + "#" * (SOURCE_BYTES - 10)) == "1"


def test_many_programs_run_at_once(either: Box) -> None:
    async def many() -> list[str]:
        return await asyncio.gather(*(either.sandbox.run(f"print({n})") for n in range(100)))

    assert either.loop.run(many()) == [str(n) for n in range(100)]


def test_cancelling_a_run_ends_its_program(either: Box) -> None:
    async def cancel() -> None:
        task = asyncio.ensure_future(either.sandbox.execute("import time; time.sleep(60)", limits=RunLimits()))
        assert await asyncio.to_thread(soon, lambda: sandboxed().keys() - before.keys())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    either.output("")
    before = sandboxed()
    either.loop.run(cancel())
    assert soon(lambda: sandboxed().keys() <= before.keys())


def test_a_run_can_be_cancelled_at_any_moment(either: Box) -> None:
    """Also while bubblewrap starts, when its child no longer is of its process group and does not yet die with it."""
    limits = replace(QUICK, files_mib=100 + os.getpid() % 10_000)
    mark = f"--size\0{limits.files_mib * MIB}\0".encode()

    async def cancel() -> None:
        for tenths_of_ms in range(0, 150, 2):
            task = asyncio.ensure_future(either.sandbox.execute("import time; time.sleep(60)", limits=limits))
            await asyncio.sleep(tenths_of_ms / 10_000)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    either.output("")
    before = sandboxed()
    either.loop.run(cancel())
    assert soon(lambda: not commands_with(mark))
    assert soon(lambda: sandboxed().keys() <= before.keys())


def test_a_program_cannot_pass_for_a_broken_sandbox(either: Box) -> None:
    assert either.output("import sys; sys.stderr.write('bwrap: no\\n'); sys.exit(1)") == "bwrap: no"


@pytest.mark.parametrize("config", PATHS.values(), ids=list(PATHS))
def test_a_sandbox_that_cannot_start_is_down(config: SandboxConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_command.sys, "base_prefix", "/nowhere")
    with box(config) as broken, pytest.raises(ToolDown, match=r"the sandbox did not .*: bwrap: .*/nowhere"):
        broken.output("print(1)")


def test_a_machine_without_a_filter_has_no_sandbox(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_filter.os, "uname", lambda: SimpleNamespace(machine="vax"))
    with pytest.raises(ToolDown, match="no sandbox for machines of type vax"):
        sandbox_filter.allowed_calls()


def test_a_missing_bubblewrap_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(UserError, match=r"bwrap is missing: install bubblewrap .*apt-get install bubblewrap"):
        require_bubblewrap()
    for config in PATHS.values():
        with box(config) as broken, pytest.raises(ToolDown, match="is missing: install bubblewrap"):
            broken.output("print(1)")


@pytest.mark.parametrize("config", PATHS.values(), ids=list(PATHS))
def test_bubblewrap_works_here(config: SandboxConfig) -> None:
    require_bubblewrap(config)


def test_no_descriptors_left_is_a_failure_of_ours(either: Box) -> None:
    either.output("")
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free, most))
    try:
        with pytest.raises(ToolDown, match="Too many open files"):
            either.output("print(1)")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    assert either.output("print(1)") == "1"


def test_a_zygote_that_dies_takes_its_runs_along_and_is_replaced() -> None:
    before = sandboxed().keys()

    def new() -> set[int]:
        return sandboxed().keys() - before

    async def kill_it() -> None:
        task = asyncio.ensure_future(warm.sandbox.execute("import time; time.sleep(60)"))
        # Around the zygote is bubblewrap; below it are init and the program.
        assert await asyncio.to_thread(soon, lambda: len(new()) == 4)
        os.kill(sorted(new())[1], signal.SIGKILL)
        with pytest.raises(ToolDown, match="the sandbox did not work"):
            await task

    with box(WARM) as warm:
        warm.loop.run(kill_it())
        assert warm.output("print(1)") == "1"
        assert soon(lambda: len(new()) == 2)


def test_the_zygote_ends_with_its_sandbox() -> None:
    before = sandboxed()
    with box(WARM) as warm:
        warm.output("print(1)")
        warm.loop.run(warm.sandbox.close())
        assert soon(lambda: sandboxed() == before)
        assert warm.output("print(2)") == "2"  # and another is started on demand
        warm.sandbox = Sandbox(WARM)
        assert soon(lambda: sandboxed() == before)


ORPHAN = """
import asyncio, sys
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig
asyncio.run(Sandbox(SandboxConfig(warm=sys.argv[1] == "warm")).run("import time; time.sleep(60)"))
"""


@pytest.mark.parametrize("path", PATHS)
def test_nothing_outlives_a_parent_that_is_killed(path: str) -> None:
    with subprocess.Popen([sys.executable, "-c", ORPHAN, path], cwd=Path(__file__).parents[4]) as parent:
        expected = {"warm": 4, "cold": 3}[path]
        assert soon(lambda: len(sandboxed(parent.pid)) >= expected)
        inside = sandboxed(parent.pid)
        parent.kill()
    assert soon(lambda: not any(Path(f"/proc/{number}").exists() for number in inside))


def test_without_a_sandbox_each_program_is_warned_of(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with box(replace(QUICK, kind=Kind.none)) as none:
        folder = Path(none.output("import os; print(os.getcwd()); open('note', 'w')"))
        assert folder.parent == Path(tempfile.gettempdir())
        assert not folder.exists()
        assert none.output("print(input())", "7") == "7"
        assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


def test_without_a_sandbox_the_limits_hold() -> None:
    with box(replace(QUICK, kind=Kind.none)) as none:
        assert none.output("x = bytearray(1 << 30)") == "MemoryError: over the limit of 256 MiB"
        assert none.output("while True: pass") == "stopped: over the limit of 1 s of CPU time"
        forker = "import os, time; os.fork(); print(1, flush=True); time.sleep(60)"
        assert none.output(forker, wall_s=3.0) == "1\n1\nstopped: over the limit of 3 s"


def test_without_a_sandbox_no_bubblewrap_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox_command.shutil, "which", lambda name: None if name == "bwrap" else f"/usr/bin/{name}")
    require_bubblewrap(SandboxConfig(kind=Kind.none))


def test_a_recipe_can_set_all_of_it() -> None:
    config = load(SandboxConfig, overrides=["kind=none", "warm=false", "cpu_s=2", "wall_s=3", "output_bytes=10"])
    assert config == SandboxConfig(kind=Kind.none, warm=False, cpu_s=2, wall_s=3.0, output_bytes=10)
    assert OmegaConf.structured(SandboxConfig).kind is Kind.bubblewrap
    with pytest.raises(UserError, match="kind"):
        load(SandboxConfig, overrides=["kind=docker"])


def test_output_keeps_its_head_and_its_tail() -> None:
    capped = Capped(8)
    for chunk in (b"abc", b"defg", b"hij", b"klmnop"):
        capped.add(chunk)
    assert capped.text() == "abcd\n[8 bytes left out]\nmnop"


def test_output_within_the_cap_is_whole() -> None:
    capped = Capped(8)
    capped.add(b"abcdefgh")
    assert capped.text() == "abcdefgh"


def test_a_death_by_signal_is_described() -> None:
    assert outcome(Ended(137, "", ""), QUICK).failure == "stopped: killed, out of CPU time or memory"
