"""Where cgroups can be made, and what becomes of them; on trees of files where the machine has no such kind."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from coa.tools.sandbox import cgroup, containment
from coa.tools.sandbox.cgroup import Group, Groups, Place, places, sweep
from coa.tools.sandbox.containment import Containment, describe, place_of_cgroups
from coa.tools.sandbox.sandbox import Sandbox
from tests.support.sandboxes import QUICK

V1 = """\
30 25 0:26 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
31 25 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 25 0:28 / /sys/fs/cgroup/pids rw,relatime shared:9 - cgroup cgroup rw,pids
33 25 0:29 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""
V1_OWN = "9:memory:/jobs/7\n8:cpu,cpuacct:/\n7:pids:/jobs\n1:name=systemd:/x\n0::/\n"
V2 = "30 25 0:26 {root} /sys/fs/cgroup rw,relatime - cgroup2 cgroup2 rw,nsdelegate\n"


def test_v1_controllers_are_where_they_are_mounted() -> None:
    first, *_ = places(V1_OWN, V1)
    assert first.version == 1
    assert {name: str(folder) for name, folder in first.folders.items()} == {
        "memory": "/sys/fs/cgroup/memory/jobs/7",
        "cpu": "/sys/fs/cgroup/cpu,cpuacct",
        "pids": "/sys/fs/cgroup/pids/jobs",
    }


@pytest.mark.parametrize(
    ("root", "own", "folders"),
    [
        ("/", "/user.slice/a.scope/main", ["/user.slice/a.scope/main", "/user.slice/a.scope"]),
        ("/docker/7", "/docker/7/job", ["/job", ""]),
        ("/docker/7", "/docker/77", ["/docker/77", "/docker"]),  # not beneath what is mounted
    ],
)
def test_v2_has_one_folder_beneath_or_beside_this_process(root: str, own: str, folders: list[str]) -> None:
    found = places(f"0::{own}\n", V2.format(root=root))
    assert [(place.version, str(place.folders["memory"])) for place in found] == [
        (2, "/sys/fs/cgroup" + folder) for folder in folders
    ]


def test_without_the_controllers_there_is_no_place() -> None:
    assert places("0::/\n", "") == []
    assert places("9:cpu:/\n", V1) == []


FILES = {
    1: (
        "memory.limit_in_bytes",
        "memory.swappiness",
        "memory.kmem.tcp.limit_in_bytes",
        "pids.max",
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
        "cpu.shares",
    ),
    2: ("memory.max", "memory.swap.max", "pids.max", "cpu.max", "cpu.weight"),
}


@pytest.mark.parametrize("version", FILES)
def test_the_limits_are_written(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mkdir = Path.mkdir

    def with_files(folder: Path) -> None:
        mkdir(folder)
        for name in (*FILES[version], "memory.events", "pids.current"):
            (folder / name).touch()

    monkeypatch.setattr(Path, "mkdir", with_files)
    monkeypatch.setattr(cgroup, "GONE_S", 0.0)
    monkeypatch.setattr(cgroup.os, "getpriority", lambda *_: 5)
    group = Group(Place(version, dict.fromkeys(("memory", "pids", "cpu"), tmp_path)), threads=8, cores=1.5)
    group.limit(100 << 20)
    [folder] = tmp_path.iterdir()
    written = {name: (folder / name).read_text() for name in FILES[version]}
    (folder / "pids.current").write_text("1\n")
    (folder / ("memory.events" if version == 2 else "memory.oom_control")).write_text(
        "low 0\noom_kill 3\noom_group_kill 0\n"
    )
    memory, sockets = str(116 << 20), str(16 << 20)
    expected = {
        1: (memory, "0", sockets, "10", "100000", "150000", "336"),
        2: (memory, "0", "10", "150000 100000", "33"),
    }
    assert written == dict(zip(FILES[version], expected[version], strict=True))
    assert group.entrances == (str(folder / "cgroup.procs"),)
    assert (group.quiet, group.killed(), group.killed()) == (False, True, False)
    group.staying = 1
    assert group.quiet
    group.remove()


OWNER = """
import sys
from coa.tools.sandbox.cgroup import Group, find
print(Group(find(), threads=1, cores=1.0).entrances[0], flush=True)
sys.stdin.read()
"""


def here() -> Place:
    place = place_of_cgroups()
    if place is None:
        pytest.skip("no cgroup can be made here")
    return place


def test_cgroups_of_a_killed_owner_are_swept_and_no_others() -> None:
    place, mine = here(), Group(here(), threads=1, cores=1.0)
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline()).parent
        sweep(place)
        assert folder.exists()
        owner.kill()
    sweep(place)
    assert not folder.exists()
    assert Path(mine.entrances[0]).exists()
    mine.remove()
    assert not Path(mine.entrances[0]).parent.exists()


def test_a_cgroup_is_used_again_once_it_is_quiet() -> None:
    groups = Groups(here(), threads=4, cores=1.0)
    with groups.borrowed(64 << 20) as first, groups.borrowed(64 << 20) as second:
        assert first is not second
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as inside:
            for entrance in first.entrances:
                Path(entrance).write_text(str(inside.pid))
            assert (first.quiet, second.quiet) == (False, True)
    with groups.borrowed(32 << 20) as again:
        assert again in (first, second)
    groups.close()
    assert not any(Path(path).exists() for group in (first, second) for path in group.entrances)


def test_a_forgotten_sandbox_leaves_no_cgroup() -> None:
    """Whether its zygote or its cgroups are collected first."""
    place = here()
    with asyncio.Runner() as loop:
        sandbox = Sandbox(QUICK)
        assert loop.run(sandbox.run("print(1)")) == "1"
        made = [
            p
            for p in place.folders["pids"].glob(f"coa-sandbox-{os.getpid()}-*")
            if "\n" in (p / "cgroup.procs").read_text()
        ]
        assert made
        cycle: list[object] = [sandbox]
        cycle.append(cycle)
        del sandbox, cycle
        gc.collect()
    assert not any(folder.exists() for folder in made)


def test_a_machine_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(containment, "find", lambda: Place(2, {"memory": Path("/sys/fs/cgroup/x")}))
    assert describe() == Containment(True, "cgroup v2 in /sys/fs/cgroup/x", True, True, "")
    monkeypatch.setattr(containment, "find", lambda: "Read-only file system")
    monkeypatch.setattr(containment, "threads_counted", lambda: True)
    monkeypatch.setattr(containment.os, "geteuid", lambda: 1000)
    described = describe()
    assert (described.cgroup, described.why, described.sockets, described.threads) == (
        False,
        "Read-only file system",
        False,
        True,
    )
    assert described.advice.startswith("systemd-run --user --scope -p Delegate=yes")
    monkeypatch.setattr(containment.os, "geteuid", lambda: 0)
    assert "another user" in describe().advice


def test_root_is_root_by_its_number_outside() -> None:
    assert containment.threads_counted() == (
        os.geteuid() != 0 or Path("/proc/self/uid_map").read_text().split()[1] != "0"
    )
