"""Two hosts on this machine: network namespaces that are joined by a cable, which can be cut.

The first has Ray's head and the driver; the second has a memory and a folder for Ray's files of its own, and sees no
file of the first but those that both mount.
"""

import itertools
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil
import pytest

from tests.support.clusters import Cluster, head

NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
NUMBERS = itertools.count()
HEAD_CPUS, ENGINE_CPUS = 1, 2


def ip(*words: str) -> str:
    return subprocess.run(["ip", *words], check=True, capture_output=True, text=True).stdout


@dataclass(frozen=True, slots=True)
class Host:
    name: str
    """Of the namespace, and of its end of the cable."""
    address: str

    @property
    def inside(self) -> tuple[str, ...]:
        """What a command is run by, to run on it."""
        return ("ip", "netns", "exec", self.name)

    def make(self) -> None:
        ip("netns", "add", self.name)

    def connect(self, other: "Host") -> None:
        """Brings its end of the cable up. The way out, which leads nowhere, is how a process learns its own address."""
        ip("-n", self.name, "link", "set", self.name, "up")
        ip("-n", self.name, "route", "replace", "default", "via", other.address)

    def remove(self) -> None:
        """With all that runs on it."""
        with suppress(subprocess.CalledProcessError):
            for pid in ip("netns", "pids", self.name).split():
                with suppress(psutil.Error):
                    psutil.Process(int(pid)).kill()
            ip("netns", "del", self.name)


@dataclass(frozen=True, slots=True)
class Hosts:
    first: Host
    second: Host
    cluster: Cluster

    def cut(self) -> None:
        """No message passes, and no end is told so."""
        ip("-n", self.second.name, "link", "set", self.second.name, "down")

    def mend(self) -> None:
        self.second.connect(self.first)

    def join_second(self) -> None:
        own = f'mount -t tmpfs none /dev/shm && mount -t tmpfs none {self.cluster.folder} && exec "$@"'
        self._join(self.second, "unshare", "--mount", "sh", "-c", own, "sh")

    def join_first(self) -> None:
        """Another node, on the first host."""
        self._join(self.first)

    def _join(self, host: Host, *before: str) -> None:
        words = [f"--node-ip-address={host.address}"]
        self.cluster.join(*host.inside, *before, cpus=ENGINE_CPUS, words=words)


@contextmanager
def two_hosts() -> Iterator[Hosts]:
    number = next(NUMBERS)
    net, name = f"10.77.{(os.getpid() + number) % 250}", f"coa{os.getpid()}{number}"
    first, second = Host(f"{name}a", f"{net}.1"), Host(f"{name}b", f"{net}.2")
    try:
        first.make()
        second.make()
        ip("link", "add", first.name, "netns", first.name, "type", "veth", "peer", second.name, "netns", second.name)
        for host in (first, second):
            ip("-n", host.name, "link", "set", "lo", "up")
            ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", host.name)
            ip("-n", host.name, "link", "set", host.name, "up")
        for host, other in ((first, second), (second, first)):
            host.connect(other)
        words = (f"--node-ip-address={first.address}",)
        with head("disabled", *words, cpus=HEAD_CPUS, before=first.inside, address=first.address) as cluster:
            hosts = Hosts(first, second, cluster)
            hosts.join_second()
            yield hosts
    finally:
        for host in (first, second):
            host.remove()
