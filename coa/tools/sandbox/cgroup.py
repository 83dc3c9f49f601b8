"""Cgroups of sandboxed programs, which limit the memory of a program together with all that the kernel holds for it.

    /sys/fs/cgroup/memory/<ours>/coa-sandbox-17-0/3    v1: a folder in the tree of each controller
    /sys/fs/cgroup/<ours>/coa-sandbox-17-0/3           v2: one folder

They are made beneath the cgroup of this process, or beside it, if that is writable (as root, or delegated). A sandbox
has a parent cgroup, whose programs get a fair share of the processors together: they neither wait for all processes
beside them, nor does their number displace an engine. A program's cgroup is made on demand and reused for later runs,
since moving a process into another cgroup takes milliseconds.
"""

import fcntl
import itertools
import os
import secrets
import time
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

MIB = 1 << 20
PREFIX = "coa-sandbox-"
NEEDED = ("memory", "pids")
CONTROLLERS = (*NEEDED, "cpu")
KERNEL_MIB = 16
"""MiB of a run in addition to its program's memory and files: page tables, thread stacks, the waiting interpreter."""
SOCKETS_MIB = 16
"""MiB that TCP sockets may hold, which cgroup v1 counts separately."""
OURS = 2
"""Number of our processes in the program's cgroup: the waiting interpreter, and process 1 of the namespace."""
GONE_S = 1.0
"""Maximum seconds to wait for the kernel to remove dead processes; after that, the cgroup is left to the next sandbox
to remove."""
SESSIONS, SESSION = Path("/proc/sys/kernel/sched_autogroup_enabled"), Path("/proc/self/autogroup")
OF_SESSION = 4
"""Weight of a sandbox's programs, in that of this process's session. Beside a session whose threads sleep and wake
often, as those of an engine do, Linux 6.18 gives a group of the same weight next to nothing: programs of 10 ms took
3 s."""

_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the file system where cgroups may be made."""

    version: int
    folders: Mapping[str, Path]
    """Parent folder of the cgroups, by controller."""


def places(own: str, mounts: str) -> list[Place]:
    """Candidate places where this process could make cgroups, the best first; permissions are not checked.

    own: the text of /proc/self/cgroup, mounts: that of /proc/self/mountinfo.
    """
    ours: dict[str, str] = {}
    for line in own.splitlines():
        _, controllers, path = line.split(":", 2)
        ours |= dict.fromkeys(controllers.split(","), path)
    v1: dict[str, Path] = {}
    v2: list[Path] = []
    for line in mounts.splitlines():
        fields = line.split()
        kind, options = fields[fields.index("-") + 1], fields[-1].split(",")
        if kind == "cgroup2" and "" in ours:
            v2.append(_inside(fields[4], fields[3], ours[""]))
        elif kind == "cgroup":
            v1 |= {
                name: _inside(fields[4], fields[3], ours[name])
                for name in CONTROLLERS
                if name in options and name in ours
            }
    found = [Place(1, v1)] if v1.keys() >= set(NEEDED) else []
    return found + [Place(2, dict.fromkeys(CONTROLLERS, path)) for own in v2 for path in (own, own.parent)]


def _inside(mount: str, root: str, path: str) -> Path:
    """The folder of the cgroup `path` under a mount, which shows the tree from `root` on."""
    if path == root or path.startswith(root.rstrip("/") + "/"):
        path = path[len(root.rstrip("/")) :]
    return Path(mount) / path.lstrip("/")


def find() -> Place | str:
    """The first place in which a cgroup can be made, checked by making one; otherwise the reason why there is none."""
    try:
        found = places(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    except OSError as error:
        return str(error)
    why = "the controllers memory and pids are not mounted"
    for place in found:
        folder = place.folders["memory"]
        if place.version == 2:
            enabled = _enabled(folder)
            if not enabled.issuperset(NEEDED):
                why = f"{folder}/cgroup.subtree_control does not name memory and pids"
                continue
            place = Place(2, {name: folder for name in CONTROLLERS if name in enabled})
        try:
            _try(place)
        except OSError as error:
            why = str(error)
        else:
            return place
    return why


def _try(place: Place) -> None:
    """Makes and removes a cgroup of a program; raises OSError."""
    parent = Parent(place)
    try:
        Group(parent.place, threads=1, cores=1.0).remove()
    finally:
        parent.remove()


def _enabled(folder: Path) -> set[str]:
    try:
        return set((folder / "cgroup.subtree_control").read_text().split())
    except OSError:
        return set()


def fair_share(own: str) -> float:
    """Weight of a sandbox's programs, in that of a process with nice value 0, so that they neither wait for all other
    processes nor displace them: OF_SESSION times that of the session of this process, or else that of one process for
    each core.

    own: the text of /proc/self/cgroup. In the root cgroup Linux may weigh sessions (autogroup), each with a nice value
    of its own; the nice values of processes then count within their session only.
    """
    paths = [path for _, controllers, path in (line.split(":", 2) for line in own.splitlines()) if "cpu" in controllers]
    nice, weight = os.getpriority(os.PRIO_PROCESS, 0), len(os.sched_getaffinity(0))
    with suppress(OSError):  # a kernel without autogroup
        session = SESSION.read_text().split()  # empty for a process in no session's group, such as a child of init
        if session and SESSIONS.read_text().strip() == "1" and all(path == "/" for path in paths):
            nice, weight = int(session[-1]), OF_SESSION
    return weight / 1.25**nice  # each step of a nice value is a factor of 1.25


class Parent:
    """The cgroup above those of a sandbox's programs."""

    def __init__(self, place: Place) -> None:
        """Makes the cgroup. Raises OSError."""
        self._lock = -1
        while not self._make(place):
            pass
        folders = self.place.folders
        try:
            if place.version == 2:
                _write(folders["memory"] / "cgroup.subtree_control", " ".join(f"+{name}" for name in folders))
            if "cpu" in folders:
                share = fair_share(Path("/proc/self/cgroup").read_text())
                if place.version == 1:
                    _write(folders["cpu"] / "cpu.shares", str(min(max(2, round(1024 * share)), 262_144)))
                else:
                    _write(folders["cpu"] / "cpu.weight", str(min(max(1, round(100 * share)), 10_000)))
        except OSError:
            self.remove()
            raise

    def _make(self, place: Place) -> bool:
        """Makes and locks the folders: a free lock means that the owner was killed, so that any sandbox may remove
        them. Returns False if one did so before they were locked."""
        name = f"{PREFIX}{os.getpid()}-{secrets.token_hex(4)}"
        self.place = Place(place.version, {controller: folder / name for controller, folder in place.folders.items()})
        """The place of the programs' cgroups."""
        folders = list(dict.fromkeys(self.place.folders.values()))
        try:
            for folder in folders:
                folder.mkdir()
            self._lock = os.open(self.place.folders["memory"], os.O_RDONLY)
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        except FileNotFoundError:
            self.remove()
            if place.folders["memory"].exists():
                return False
            raise
        except OSError:
            self.remove()
            raise
        if all(folder.exists() for folder in folders):
            return True
        self.remove()
        return False

    def remove(self) -> None:
        """Removes the cgroup; if one of a program is left in it, a later sandbox removes both."""
        _removed(self.place.folders.values())
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


class Group:
    """A cgroup for one program at a time."""

    def __init__(self, place: Place, *, threads: int, cores: float) -> None:
        """Makes the cgroup. place: that of its parent. threads and cores: maximum for the program. Raises OSError."""
        name = str(next(_numbers))
        self._v1 = place.version == 1
        self._folders = {controller: folder / name for controller, folder in place.folders.items()}
        self.staying = 0
        """Number of processes that stay in the cgroup to wait for the next program."""
        self._memory = self._kills = 0
        try:
            for folder in dict.fromkeys(self._folders.values()):
                folder.mkdir()
            self._limit_once(threads, cores)
        except OSError:
            self.remove()
            raise

    def _limit_once(self, threads: int, cores: float) -> None:
        self._write("pids", "pids.max", str(threads + OURS))
        period_us = 100_000
        quota_us = int(cores * period_us)
        if self._v1:
            self._write("memory", "memory.swappiness", "0")
            self._write("memory", "memory.kmem.tcp.limit_in_bytes", str(SOCKETS_MIB * MIB))
            if "cpu" in self._folders:
                self._write("cpu", "cpu.cfs_period_us", str(period_us))
                self._write("cpu", "cpu.cfs_quota_us", str(quota_us))
            return
        with suppress(FileNotFoundError):  # a kernel without swap
            self._write("memory", "memory.swap.max", "0")
        if "cpu" in self._folders:
            self._write("cpu", "cpu.max", f"{quota_us} {period_us}")

    def limit(self, program: int) -> None:
        """Sets the bytes that a program and its files may take together."""
        if program != self._memory:
            self._write(
                "memory", "memory.limit_in_bytes" if self._v1 else "memory.max", str(program + KERNEL_MIB * MIB)
            )
            self._memory = program

    @property
    def entrances(self) -> tuple[str, ...]:
        """The files to which a process writes 0 to move itself to this cgroup."""
        return tuple(str(folder / "cgroup.procs") for folder in dict.fromkeys(self._folders.values()))

    @property
    def quiet(self) -> bool:
        """Whether only the waiting processes are left in the cgroup."""
        return int((self._folders["pids"] / "pids.current").read_bytes()) <= self.staying

    def killed(self) -> bool:
        """Whether a process was killed in this cgroup for lack of memory since the last call of this method."""
        text = (self._folders["memory"] / ("memory.oom_control" if self._v1 else "memory.events")).read_text()
        before, self._kills = self._kills, int(text.rpartition("oom_kill ")[2].split()[0])
        return self._kills > before

    def remove(self) -> None:
        """Removes the cgroup once its processes are gone; if they stay too long, a later sandbox removes it."""
        end = time.monotonic() + GONE_S
        while not _removed(self._folders.values()) and time.monotonic() < end:
            time.sleep(0.005)

    def _write(self, controller: str, name: str, value: str) -> None:
        _write(self._folders[controller] / name, value)


class Groups:
    """The cgroups of one sandbox. They are removed when the sandbox is closed or garbage-collected."""

    def __init__(self, place: Place, *, threads: int, cores: float) -> None:
        self._make = partial(Group, threads=threads, cores=cores)
        self._idle: list[Group] = []
        self._all: list[Group | Parent] = []
        """The cgroups to remove; the parent, which is made with the first program's, is the first."""
        self._place = place
        self._parent: Parent | None = None
        self.close = weakref.finalize(self, _remove_all, self._all)

    @contextmanager
    def borrowed(self, program: int) -> Iterator[Group]:
        """A cgroup for exclusive use, with a memory limit in bytes. Raises OSError."""
        group = next((group for group in reversed(self._idle) if group.quiet), None)
        if group is None:
            if self._parent is None:
                sweep(self._place)
                self._parent = Parent(self._place)
                self._all.append(self._parent)
            group = self._make(self._parent.place)
            self._all.append(group)
        else:
            self._idle.remove(group)
        group.limit(program)
        try:
            yield group
        finally:
            self._idle.append(group)


def _remove_all(groups: list[Group | Parent]) -> None:
    while groups:
        groups.pop().remove()


def _write(file: Path, value: str) -> None:
    # No O_TRUNC, which the kernel may refuse.
    descriptor = os.open(file, os.O_WRONLY)
    try:
        os.write(descriptor, value.encode())
    finally:
        os.close(descriptor)


def sweep(place: Place) -> None:
    """Removes cgroups of sandboxes whose owner was killed."""
    for folder in place.folders["memory"].glob(f"{PREFIX}*"):
        with suppress(OSError):
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for parent in {parent / folder.name for parent in place.folders.values()}:
                    _removed([*(inside for inside in parent.glob("*") if inside.is_dir()), parent])
            finally:
                os.close(lock)


def _removed(folders: Iterable[Path]) -> bool:
    """Removes the folders that are empty; returns whether none is left."""
    left = False
    for folder in dict.fromkeys(folders):
        try:
            folder.rmdir()
        except FileNotFoundError:
            pass
        except OSError:
            left = True
    return not left
