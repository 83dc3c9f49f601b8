"""What programs try against a sandbox, warm and cold: each is contained, leaves nothing, and does not harm the next."""

import asyncio
import os
import platform
import re
import shutil
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coa.tools.sandbox.filter import NEW, allowed_calls
from tests.support.patience import soon
from tests.support.sandbox_attacks import ALL, TRY
from tests.support.sandboxes import QUICK, Box, box, sandboxed

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
PROBES = {335, 336} if platform.machine() == "x86_64" else set()
"""Of the kernel's probes: no filter is asked, and a program that makes one dies of SIGILL."""
PATHS = {"cold": replace(QUICK, warm=False), "warm": QUICK}


@pytest.fixture(scope="module", params=PATHS.values(), ids=list(PATHS))
def either(request: pytest.FixtureRequest) -> Iterator[Box]:
    with box(request.param) as made:
        made.output("")
        yield made


@pytest.fixture(scope="module")
def warm() -> Iterator[Box]:
    with box(PATHS["warm"]) as made:
        yield made


@pytest.mark.parametrize("name", ALL)
def test_an_attack_is_contained(name: str, either: Box) -> None:
    attack = ALL[name]
    before = sandboxed()
    output = either.output(attack.program, wall_s=attack.wall_s, cpu_s=5 if attack.wall_s else None)
    assert re.fullmatch(attack.output, output), output[-1000:]
    assert len(output) < either.config.output_bytes + 200
    assert either.output("import os; print(2, os.listdir())") == "2 ['main.py']"
    assert soon(lambda: sandboxed().keys() <= before.keys())  # the same zygote, and nobody else


def test_a_program_cannot_signal_another_call(either: Box) -> None:
    """Process groups reach across namespaces: without one of its own, a call would share the zygote's."""

    async def both() -> tuple[str, str]:
        killer = "import os, time; time.sleep(0.3); os.kill(0, 9)"
        other = "import time; time.sleep(0.6); print('alive')"
        return await asyncio.gather(either.sandbox.run(killer), either.sandbox.run(other))

    assert tuple(either.loop.run(both())) == ("stopped: killed, out of CPU time or memory", "alive")


def test_empty_files_have_a_limit(warm: Box) -> None:
    program = "import os\ntry:\n    for n in range(10_000): os.mkdir(str(n))\nexcept OSError: print(n)"
    assert warm.output(program) == "1022"  # of 4 MiB / 4096 places, main.py and the workspace itself take two


def test_every_call_that_is_not_allowed_is_refused(either: Box) -> None:
    program = f"""
import ctypes
call = ctypes.CDLL(None, use_errno=True).syscall
def error(number): return call(number, 0, 0, 0, 0, 0, 0) == -1 and ctypes.get_errno()
numbers = set(range(1000)) - {set(allowed_calls().values()) | PROBES}
print([n for n in numbers if error(n) != (1 if n < {NEW} else 38)], error(1 << 20), error(0x40000000 + 57))
"""
    assert either.output(program) == "[] 38 38"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="machine code")
def test_calls_by_the_convention_of_another_machine_kill_the_program(either: Box) -> None:
    program = """
import ctypes, mmap
code = mmap.mmap(-1, 4096, prot=7)
code.write(bytes.fromhex("b802000000 cd80 c3"))  # fork, as a program of 32 bits calls it
ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(code)))()
"""
    assert either.output(program) == "exit status 159"


def test_sockets_of_the_host_are_out_of_reach(either: Box, tmp_path: Path) -> None:
    path, name = str(tmp_path / "socket"), f"\0{tmp_path}"
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.socket(socket.AF_UNIX) as unix,
        socket.socket(socket.AF_UNIX) as abstract,
    ):
        unix.bind(path)
        abstract.bind(name)
        unix.listen()  # on the host
        abstract.listen()
        addresses = (2, server.getsockname()), (1, path), (1, name)
        output = either.output(TRY + f"import socket\nfor f, a in {addresses!r}: attempt(socket.socket(f).connect, a)")
    assert output == "Connection refused\nNo such file or directory\nConnection refused"


def test_calls_at_the_same_time_do_not_meet(either: Box) -> None:
    """Each writes, waits for messages and asks who is there, then waits for the other to have done so as well."""
    program = """
import os, socket, time
unix, inet, pipe = socket.socket(socket.AF_UNIX, 2), socket.socket(socket.AF_INET, 2), os.mkfifo("fifo")
unix.bind("\\0meet"); inet.bind(("127.0.0.1", 8000))
time.sleep(0.5)
for end in unix, inet:
    end.settimeout(0.25)
    try: print("met", end.recv(9))
    except TimeoutError: pass
print(os.listdir(), sorted(os.kill(n, 0) or n for n in (1, 2)))
"""
    knock = """
import os, socket, time
for n in range(10):
    time.sleep(0.05)
    for family, address in (socket.AF_UNIX, "\\0meet"), (socket.AF_INET, ("127.0.0.1", 8000)):
        try: socket.socket(family, 2).sendto(b"knock", address)
        except ConnectionRefusedError: pass
print(os.listdir())
"""

    async def both() -> tuple[str, str, str]:
        return await asyncio.gather(either.sandbox.run(program), either.sandbox.run(program), either.sandbox.run(knock))

    listener = "['main.py', 'fifo'] [1, 2]"
    assert [sorted(output) for output in either.loop.run(both())] == [sorted(listener)] * 2 + [sorted("['main.py']")]


def test_nothing_stays_for_the_next_call(either: Box) -> None:
    mark = "mark-of-the-first-call"
    first = f"""
import atexit, builtins, gc, os, random, resource, signal, sys
builtins.print = builtins.len = None
sys.path.append("{mark}"); sys.modules["json"] = "{mark}"; sys.stdin = sys.argv = sys.excepthook = "{mark}"
os.environ["MARK"] = "{mark}"; os.umask(0o777); os.chdir("/"); os.nice(5)
sys.setrecursionlimit(9999); signal.signal(signal.SIGTERM, signal.SIG_IGN); gc.disable(); random.seed(1)
resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)); object.__class__
open("/tmp/{mark}", "w").write("{mark}"); os.symlink("/", "/tmp/link")
sys._getframe().f_globals["__builtins__"].open = None
"""
    second = """
import gc, json, os, random, resource, signal, sys
mark = "-".join(["mark", "of", "the", "first", "call"])
print(sys.path.count(mark), type(json), sys.argv, mark in str(os.environ), oct(os.umask(0)), os.getcwd())
print(os.nice(0))
print(sys.getrecursionlimit(), signal.getsignal(signal.SIGTERM), gc.isenabled(), os.listdir())
print(resource.getrlimit(resource.RLIMIT_NOFILE), input(), open("main.py").readline(), end="")
print([x for x in gc.get_objects() if isinstance(x, (dict, list)) and x is not globals() and mark in str(x)])
"""
    expected = either.output(second, "in")
    assert either.execute(first, mark).stderr.count("Error") == 0
    assert either.output(second, "in") == expected
    assert expected.startswith("0 <class 'module'> ['/tmp/main.py'] False 0o22 /tmp\n")
    assert expected.endswith("\n1000 0 True ['main.py']\n(64, 64) in \n[]")


def test_draws_differ_from_call_to_call(either: Box) -> None:
    program = "import os, random, uuid; print(random.random(), os.urandom(8), uuid.uuid4())"
    assert len({either.output(program) for _ in range(5)}) == 5


def test_what_the_zygote_holds_is_of_no_use(warm: Box) -> None:
    """A program finds the zygote's variables in the frame that called it, and what can be called from there."""
    program = (
        TRY
        + """
import os, sys
zygote = sys._getframe(1).f_globals
def call(name, *arguments): zygote["check"](getattr(zygote["libc"], name)(*arguments))
attempt(call, "setns", 3, 0x20000000)
attempt(call, "unshare", 0x20000000)
attempt(call, "mount", b"x", b"/tmp", b"tmpfs", 0, 0)
attempt(call, "umount2", b"/tmp", 2)
attempt(zygote["raise_loopback"])
attempt(lambda: zygote["fork"](3, apart=True))
"""
    )
    assert set(warm.output(program).splitlines()) == {"Operation not permitted"}


def test_the_zygote_and_its_owner_do_not_grow() -> None:
    async def many(times: int) -> None:
        big = "x = bytearray(1 << 24); print('x' * 100_000); open('f', 'wb').write(x[:1 << 20])"
        for _ in range(times):
            await asyncio.gather(*(warm.sandbox.execute(big, "y" * 100_000) for _ in range(8)))

    before = sandboxed().keys()
    with box(PATHS["warm"]) as warm:
        warm.loop.run(many(2))
        assert soon(lambda: len(sandboxed().keys() - before) == 2)
        zygote = max(sandboxed().keys() - before)
        size, files, ours = resident(zygote), descriptors(zygote), descriptors(os.getpid())
        warm.loop.run(many(15))
        assert resident(zygote) - size < 512 * 1024
        assert soon(lambda: descriptors(zygote) == files)
        # A cgroup whose last program is not yet gone is not used again: there may be some more.
        assert soon(lambda: descriptors(os.getpid()) - ours < 60)


def resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(process: int) -> int:
    return len(os.listdir(f"/proc/{process}/fd"))


def test_nothing_is_left_on_the_machine(either: Box, tmp_path: Path) -> None:
    mark = f"escape-{os.getpid()}"
    program = f"""
import os
for folder in "/tmp", "/dev/shm", "/var/tmp", "/dev", "/", {str(tmp_path)!r}:
    try: open(folder + "/{mark}", "w").write("x"); print(folder)
    except OSError: pass
"""
    assert either.output(program) == "/tmp"
    for folder in ("/tmp", "/dev/shm", "/var/tmp", "/dev", "/", str(tmp_path)):
        assert not Path(folder, mark).exists()
    assert mark not in Path("/proc/self/mountinfo").read_text()


def test_a_flood_of_input_is_read_or_left(either: Box) -> None:
    flood = "x" * (32 << 20)
    assert either.output("import sys\nn = 0\nwhile x := sys.stdin.read(1 << 16): n += len(x)\nprint(n)", flood) == str(
        32 << 20
    )
    assert either.output("import sys; sys.stdin.read()", flood + flood * 3) == "MemoryError: over the limit of 256 MiB"
