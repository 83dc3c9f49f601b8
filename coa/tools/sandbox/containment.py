"""What holds programs on this machine: a cgroup of their own, or limits of a process and fewer system calls."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coa.tools.sandbox.cgroup import Place, find


@dataclass(frozen=True, slots=True)
class Containment:
    """How a sandboxed program is held here, for a user to read."""

    cgroup: bool
    """Whether each program has a cgroup of its own, which counts all that the kernel holds for it."""
    why: str
    """`cgroup v1 in /sys/fs/cgroup/memory`, or why there is none."""
    sockets: bool
    """Whether a program may make sockets, other than pairs that are connected with each other."""
    threads: bool
    """Whether a program may start threads."""
    advice: str
    """Instructions to enable the missing protection; "" if nothing is missing."""


def describe() -> Containment:
    """How programs are held on this machine. Makes a cgroup and removes it, to see whether that can be done."""
    place = find()
    if isinstance(place, Place):
        return Containment(True, f"cgroup v{place.version} in {place.folders['memory']}", True, True, "")
    return Containment(False, place, False, threads_counted(), _advice())


@cache
def place_of_cgroups() -> Place | None:
    """Where programs get their cgroups; None where none can be made. Found out once in each process."""
    place = find()
    return place if isinstance(place, Place) else None


def threads_counted() -> bool:
    """Whether the kernel holds this user to a number of threads; it never does that for root."""
    return _host_user() != 0


def _host_user() -> int:
    """The user's number outside of user namespaces, as far as it is visible here."""
    user = os.geteuid()
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        inside, outside, count = map(int, line.split())
        if inside <= user < inside + count:
            return outside + user - inside
    return user


def _advice() -> str:
    if os.geteuid():
        return "systemd-run --user --scope -p Delegate=yes -p MemoryAccounting=yes -p TasksAccounting=yes coa ..."
    return (
        "in a container whose /sys/fs/cgroup can be written: cd /sys/fs/cgroup && mkdir main && "
        "for p in $(cat cgroup.procs); do echo $p > main/cgroup.procs; done; "
        'echo "+memory +pids +cpu" > cgroup.subtree_control; '
        "or run as another user than root, whose threads are counted"
    )
