"""Programs of random system calls leave the machine, and the programs beside them, as they were."""

import asyncio
import os
import shutil
from collections import Counter
from pathlib import Path

import pytest

from coa.tools.sandbox.cgroup import MIB, Place
from coa.tools.sandbox.containment import place_of_cgroups
from coa.tools.sandbox.run import Ended, RunLimits
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig
from tests.support.patience import soon
from tests.support.sandbox_fuzz import program
from tests.support.sandboxes import sandboxed
from tests.support.slow import NIGHTLY

pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
CONFIG = SandboxConfig(cpu_s=1, wall_s=2.0, memory_mib=128, files_mib=4, threads=16)
BESIDE = RunLimits(cpu_s=5, wall_s=120.0)
AT_ONCE = 4


def counted() -> dict[str, int]:
    """What the machine has of things that a process may leave behind."""
    numbers = {name: int(Path("/proc/sys", name).read_text()) for name in ("fs/aio-nr", "kernel/pty/nr")}
    tables = {name: Path("/proc/sysvipc", name).read_text().count("\n") for name in ("shm", "sem", "msg")}
    ours = sum("fuzz" in name for name in os.listdir("/dev/shm"))
    return {**numbers, **tables, "mounts": Path("/proc/self/mountinfo").read_text().count(" /tmp/"), "shm files": ours}


def held(place: Place) -> dict[str, list[int]]:
    """Of each cgroup of this process: the most that it has held, what it holds, and its processes."""
    found: dict[str, list[int]] = {}
    for controller, names in {
        "memory": (("memory.max_usage_in_bytes", "memory.peak"), ("memory.usage_in_bytes", "memory.current")),
        "pids": (("pids.current",),),
    }.items():
        for folder in place.folders[controller].glob(f"coa-sandbox-{os.getpid()}-*/*/"):
            for either in names:
                number = next(int((folder / name).read_text()) for name in either if (folder / name).exists())
                found.setdefault(f"{folder.parent.name}/{folder.name}", []).append(number)
    return found


async def fuzz(sandbox: Sandbox, programs: int) -> tuple[Counter[int | None], list[Ended]]:
    """Runs so many; how they ended, and the plain programs that ran among them."""
    left, ends, plain = iter(range(programs)), Counter[int | None](), []

    async def worker() -> None:
        for seed in left:
            ends[(await sandbox.execute(program(seed))).status] += 1
            if seed % 10 == 0:
                plain.append(await sandbox.execute("import json; print(json.dumps([7]))", limits=BESIDE))

    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    return ends, plain


@pytest.mark.parametrize("programs", [8, pytest.param(2000 if NIGHTLY else 500, marks=pytest.mark.slow, id="many")])
@pytest.mark.parametrize("cgroup", [True, False], ids=["cgroup", "limits"])
def test_random_calls_leave_nothing(programs: int, cgroup: bool) -> None:
    place = place_of_cgroups()
    if cgroup and place is None:
        pytest.skip("no cgroup can be made here")
    before, processes = counted(), sandboxed()
    with asyncio.Runner() as loop:
        sandbox = Sandbox(SandboxConfig(**{**vars(CONFIG), "cgroup": cgroup}))
        assert loop.run(sandbox.execute("print(1)")).stdout == "1\n"
        descriptors = len(os.listdir("/proc/self/fd"))
        ends, plain = loop.run(fuzz(sandbox, programs))  # none of them breaks the sandbox, which would raise
        assert plain == [Ended(0, "[7]\n", "")] * len(plain)
        assert ends[0] >= 0.2 * (programs - ends[None]), ends  # many come to their end, on a machine with time for them
        if cgroup and place is not None:
            assert soon(lambda: all(pids <= 1 for *_, pids in held(place).values()))
            most = (CONFIG.memory_mib + CONFIG.files_mib + 16) * MIB
            # A plain program has more, and pages of files that were read stay until somebody needs the memory.
            bound = max(most, (BESIDE.memory_mib + BESIDE.files_mib + 16) * MIB)
            assert all(peak <= bound and now <= most for peak, now, _ in held(place).values())
            assert len(held(place)) <= 8 * AT_ONCE
        assert soon(lambda: len(os.listdir("/proc/self/fd")) - descriptors <= 2 * 8 * AT_ONCE)
        loop.run(sandbox.close())
    assert soon(lambda: sandboxed() == processes)
    assert place is None or soon(lambda: not list(place.folders["pids"].glob(f"coa-sandbox-{os.getpid()}-*")))
    # Others on this machine may take some too, and give them back.
    assert soon(lambda: all(number <= before[name] for name, number in counted().items())), (counted(), before)
