"""What a program may hold in all, with a cgroup and without: memory by every way, threads, locks, what is told."""

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coa.tools.sandbox.containment import place_of_cgroups, threads_counted
from coa.tools.sandbox.sandbox import SandboxConfig
from tests.support.sandbox_limits import CALL, RAW_THREADS, THREAD, WAYS
from tests.support.sandboxes import Box, box

pytestmark = [
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap"),
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the programs make calls by their numbers"),
]
WARM = SandboxConfig(cpu_s=5, wall_s=60.0, memory_mib=128, files_mib=4, threads=32)
CONFIGS = {
    f"{path}, {holding}": replace(WARM, warm=path == "warm", cgroup=holding == "cgroup")
    for path in ("cold", "warm")
    for holding in ("cgroup", "limits")
}
KILLED = "stopped: killed, out of CPU time or memory"


@pytest.fixture(scope="module", params=CONFIGS.values(), ids=list(CONFIGS))
def held(request: pytest.FixtureRequest) -> Iterator[Box]:
    if request.param.cgroup and place_of_cgroups() is None:
        pytest.skip("no cgroup can be made here")
    with box(request.param) as made:
        yield made


@pytest.mark.parametrize("way", WAYS)
def test_no_way_holds_more_than_the_limit(way: str, held: Box) -> None:
    output = held.output(CALL + WAYS[way] + "hold(some, 300)", cpu_s=5)
    assert "held all" not in output
    assert "held" in output or output in (KILLED, "PermissionError: [Errno 1] Operation not permitted"), output
    assert held.output("print(7)") == "7"


def test_threads_have_a_limit(held: Box) -> None:
    """500 of them on tiny stacks, as no library starts them."""
    threads = held.config.threads if held.config.cgroup or threads_counted() else 1
    assert held.output(CALL + RAW_THREADS.format(threads=500, flags=THREAD)) == str(threads - 1)
    assert held.output(CALL + RAW_THREADS.format(threads=500, flags=THREAD & ~0x400)) == "0"


def test_a_thread_too_many_is_told(held: Box) -> None:
    program = "import threading, time\nfor n in range(99): threading.Thread(target=time.sleep, args=(0.5,)).start()"
    assert held.output(program + "\n").startswith("RuntimeError: can't start new thread")


CALLS = """
import fcntl
def attempt(name, action):
    try: print(name, action() is not None)
    except OSError as error: print(name, error.strerror)
library = open(os.__file__)
attempt("lease", lambda: fcntl.fcntl(library, fcntl.F_SETLEASE, fcntl.F_RDLCK))
attempt("vsock", lambda: socket.socket(40))
attempt("netlink", lambda: socket.socket(16))
for name, number in dict(aio=206, statmount=457, listmount=458, syslog=103, sysinfo=99, fadvise=221).items():
    print(name, call(number, 1, 0, 0, 0))
"""


def test_calls_that_reach_others_are_refused(held: Box) -> None:
    assert held.output(CALL + CALLS).splitlines() == [
        "lease Operation not permitted",
        "vsock Operation not permitted",
        "netlink Operation not permitted",
        *("aio EPERM", "statmount ENOSYS", "listmount ENOSYS", "syslog EPERM", "sysinfo EPERM", "fadvise EPERM"),
    ]


def test_locks_succeed_and_lock_nothing(held: Box) -> None:
    """On the interpreter's own files, which all runs share."""
    program = "import fcntl, os; f = open(os.__file__); fcntl.flock(f, fcntl.LOCK_EX); fcntl.lockf(f, fcntl.LOCK_SH)\n"
    check = "import fcntl, os; fcntl.flock(os.open(os.__file__, os.O_RDONLY), fcntl.LOCK_EX | fcntl.LOCK_NB)\n"
    assert held.output(program + "import time; time.sleep(0.2); print(1)") == "1"
    assert held.output(program + check + "print(2)") == "2"
    database = "import sqlite3; c = sqlite3.connect('x'); c.execute('create table t (a)')\n"
    assert (
        held.output(
            database + "c.execute('insert into t values (7)'); c.commit()\n"
            "print(*sqlite3.connect('x').execute('select a from t'))"
        )
        == "(7,)"
    )


USUAL = {
    "an event loop": "import asyncio; print(asyncio.run(asyncio.sleep(0, 7)))",
    "a copy": "import shutil; shutil.copy2('main.py', 'x'); shutil.copytree('.', '/tmp/y'); print(7)",
    "temporary files": "import tempfile\nwith tempfile.TemporaryFile() as f: f.write(b'x'); print(7)",
    "an alarm": "import signal, time\nsignal.signal(14, lambda *_: print(7))\n"
    "signal.setitimer(0, 0.01); time.sleep(0.1)",
    "an archive": "import tarfile\nf = tarfile.open('x', 'w'); f.add('main.py'); f.close()\n"
    "tarfile.open('x').extractall('y'); print(7)",
    "a file in memory": "import mmap\nf = open('main.py'); m = mmap.mmap(f.fileno(), 0, access=1); print(len(m) and 7)",
}


@pytest.mark.parametrize("name", USUAL)
def test_what_programs_usually_do_is_allowed(name: str, held: Box) -> None:
    assert held.output(USUAL[name]).splitlines()[-1] == "7"


def test_no_cgroup_is_left(tmp_path: Path) -> None:
    place = place_of_cgroups()
    if place is None:
        pytest.skip("no cgroup can be made here")

    def ours() -> list[str]:
        return [p.name for f in place.folders.values() for p in f.glob(f"coa-sandbox-{os.getpid()}-*")]

    before = ours()
    for warm in (True, False):
        with box(replace(WARM, warm=warm)) as made:
            assert made.output("print(1)") == "1"
            assert len(ours()) > len(before)
        assert sorted(ours()) == sorted(before)
