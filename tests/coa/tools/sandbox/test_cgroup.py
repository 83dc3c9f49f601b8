"""Where cgroups can be made, and what becomes of them; on trees of files where the machine has no such kind."""

import asyncio
import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pytest

from coa.tools.sandbox import cgroup, containment
from coa.tools.sandbox.cgroup import Group, Groups, Parent, Place, places, sweep
from coa.tools.sandbox.containment import Containment, describe, place_of_cgroups
from coa.tools.sandbox.sandbox import Sandbox
from tests.support.sandboxes import QUICK

ROOT = Path(__file__).parents[4]
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
    ),
    2: ("memory.max", "memory.swap.max", "pids.max", "cpu.max"),
}
SHARES = {1: ("cpu.shares",), 2: ("cpu.weight", "cgroup.subtree_control")}


def with_files(names: tuple[str, ...]) -> Callable[[Path], None]:
    """`Path.mkdir` of a file system whose new folders have files."""
    mkdir = Path.mkdir

    def make(folder: Path) -> None:
        mkdir(folder)
        for name in names:
            (folder / name).touch()

    return make


@pytest.mark.parametrize("version", FILES)
def test_the_limits_are_written(version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = (*FILES[version], "memory.events", "pids.current")
    monkeypatch.setattr(Path, "mkdir", with_files(names))
    monkeypatch.setattr(cgroup, "GONE_S", 0.0)
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
        1: (memory, "0", sockets, "10", "100000", "150000"),
        2: (memory, "0", "10", "150000 100000"),
    }
    assert written == dict(zip(FILES[version], expected[version], strict=True))
    assert group.entrances == (str(folder / "cgroup.procs"),)
    assert (group.quiet, group.killed(), group.killed()) == (False, True, False)
    group.staying = 1
    assert group.quiet
    group.remove()


GROUPED = "/autogroup-17 nice 3\n"


@pytest.mark.parametrize(
    ("own", "sessions", "session", "expected"),
    [
        ("1:cpu,cpuacct:/\n0::/\n", "1", GROUPED, 4 / 1.25**3),
        ("0::/\n", "1", GROUPED, 4 / 1.25**3),
        ("1:cpu,cpuacct:/docker/7\n0::/\n", "1", GROUPED, 4 / 1.25**5),
        ("1:cpu,cpuacct:/\n0::/\n", "0", GROUPED, 4 / 1.25**5),
        ("1:cpu,cpuacct:/\n0::/\n", None, None, 4 / 1.25**5),
        ("1:cpu,cpuacct:/\n0::/\n", "1", "", 4 / 1.25**5),
    ],
)
def test_programs_together_weigh_as_much_as_the_session_or_a_process_for_each_core(
    own: str,
    sessions: str | None,
    session: str | None,
    expected: float,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cgroup.os, "getpriority", lambda *_: 5)
    monkeypatch.setattr(cgroup.os, "sched_getaffinity", lambda _: set(range(4)))
    for name, text in {"enabled": sessions, "own": session}.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(cgroup, "SESSIONS", tmp_path / "enabled")
    monkeypatch.setattr(cgroup, "SESSION", tmp_path / "own")
    assert cgroup.fair_share(own) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, {"cpu.shares": "512"}),
        (2, {"cpu.weight": "50", "cgroup.subtree_control": "+memory +pids +cpu"}),
    ],
)
def test_the_share_of_all_programs_is_written_once(
    version: int, expected: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "mkdir", with_files(SHARES[version]))
    monkeypatch.setattr(cgroup, "fair_share", lambda _: 0.5)
    parent = Parent(Place(version, dict.fromkeys(("memory", "pids", "cpu"), tmp_path)))
    [folder] = tmp_path.iterdir()
    assert set(parent.place.folders.values()) == {folder}
    written = {name: (folder / name).read_text() for name in SHARES[version]}
    assert written == expected
    parent.remove()


@pytest.mark.parametrize("moment", ["open", "flock"])
def test_a_cgroup_that_another_sandbox_sweeps_before_it_is_locked_is_made_anew(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where: Any = {"open": os, "flock": cgroup.fcntl}[moment]
    act, swept = getattr(where, moment), list[Path]()

    def late(*arguments: Any) -> Any:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].rmdir()
        return act(*arguments)

    monkeypatch.setattr(where, moment, late)
    parent = Parent(Place(1, dict.fromkeys(("memory", "pids"), tmp_path)))
    [folder] = tmp_path.iterdir()
    assert parent.place.folders == dict.fromkeys(("memory", "pids"), folder)
    assert folder not in swept
    parent.remove()


def test_where_no_cgroup_can_be_made_it_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        Parent(Place(1, dict.fromkeys(("memory", "pids"), tmp_path / "gone")))


OWNER = """
import sys
from coa.tools.sandbox.cgroup import Group, Parent, find
parent = Parent(find())
print(Group(parent.place, threads=1, cores=1.0).entrances[0], flush=True)
sys.stdin.read()
"""


def here() -> Place:
    place = place_of_cgroups()
    if place is None:
        pytest.skip("no cgroup can be made here")
    return place


def test_cgroups_of_a_killed_owner_are_swept_and_no_others() -> None:
    place, parent = here(), Parent(here())
    mine = Group(parent.place, threads=1, cores=1.0)
    command = [sys.executable, "-c", OWNER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline()).parent
        sweep(place)
        assert folder.exists()
        owner.kill()
    sweep(place)
    assert not folder.parent.exists()
    assert Path(mine.entrances[0]).exists()
    mine.remove()
    assert not Path(mine.entrances[0]).parent.exists()
    parent.remove()
    assert not Path(mine.entrances[0]).parent.parent.exists()


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
            for p in place.folders["pids"].glob(f"coa-sandbox-{os.getpid()}-*/*/")
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


SPIN = "while True: pass"
PROGRAM = """\
import time
end = time.monotonic() + 3
while time.monotonic() < end: pass
print(time.process_time())
"""
SANDBOX = f"""\
import asyncio
import os
from coa.tools.sandbox.sandbox import Sandbox, SandboxConfig

async def main():
    os.nice(15)  # as Ray's workers are
    sandbox = Sandbox(SandboxConfig())
    input()
    print(*await asyncio.gather(*(sandbox.run({PROGRAM!r}) for _ in range(2))))
    await sandbox.close()

asyncio.run(main())
"""


@pytest.mark.slow
def test_programs_get_a_fair_share_beside_the_processes_of_others() -> None:
    if "cpu" not in here().folders or cgroup.SESSIONS.read_text().strip() != "1":
        pytest.skip("processors are not shared by session here")
    command = [sys.executable, "-c", SANDBOX]
    own = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    others = [
        psutil.Popen([sys.executable, "-c", SPIN], start_new_session=True) for _ in range(2 * (os.cpu_count() or 1))
    ]
    try:
        before = [other.cpu_times().user for other in others]
        told, _ = own.communicate("\n")
        theirs = [other.cpu_times().user - then for other, then in zip(others, before, strict=True)]
    finally:
        for process in (*others, own):
            process.kill()
            process.wait()
    assert sum(map(float, told.split())) > 0.2 * median(theirs), "with the nice value of a worker it is 0.02"
