"""The containment of programs on this machine: their own cgroup, or process limits and fewer system calls."""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from coa.tools.sandbox.cgroup import Place, find


@dataclass(frozen=True, slots=True)
class Containment:
    """The containment of a sandboxed program on this machine, as shown to the user."""

    cgroup: bool
    """Whether each program has its own cgroup, which counts all memory that the kernel holds for it."""
    why: str
    """The place of cgroups, such as `cgroup v1 in /sys/fs/cgroup/memory`, or the reason why there is none."""
    sockets: bool
    """Whether a program may make sockets other than connected pairs."""
    threads: bool
    """Whether a program may start threads."""
    advice: str
    """Instructions to enable the missing protection; "" if nothing is missing."""


def describe() -> Containment:
    """The containment on this machine; makes and removes a cgroup to see whether this is possible."""
    place = find()
    if isinstance(place, Place):
        return Containment(True, f"cgroup v{place.version} in {place.folders['memory']}", True, True, "")
    return Containment(False, place, False, threads_counted(), _advice())


@cache
def place_of_cgroups() -> Place | None:
    """The place of programs' cgroups; None if none can be made. Determined once in each process."""
    place = find()
    return place if isinstance(place, Place) else None


def threads_counted() -> bool:
    """Whether the kernel limits the number of this user's threads; it does not for root."""
    return _host_user() != 0


def _host_user() -> int:
    """The user id outside of user namespaces, as far as it is visible here."""
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
