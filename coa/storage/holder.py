"""A process that holds something which only one may have, such as a run's folder."""

import os
import socket
import time
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, slots=True)
class Holder:
    host: str
    pid: int
    since: str
    """When it began to hold it, in its host's time: "2026-11-23 00:12:14"."""
    started: float
    """When its process began, in seconds since 1970: another process may have the same pid later."""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host} since {self.since}"


def this_process() -> Holder:
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return Holder(socket.gethostname(), os.getpid(), since, psutil.Process().create_time())


def runs(holder: Holder) -> bool:
    """Whether the process exists, if it is one of this host."""
    try:
        return abs(psutil.Process(holder.pid).create_time() - holder.started) < 1
    except psutil.Error:
        return False


def is_same(one: Holder, other: Holder) -> bool:
    """Whether both are the same process, whatever it holds."""
    return (one.host, one.pid, one.started) == (other.host, other.pid, other.started)
