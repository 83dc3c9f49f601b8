"""Which ports the processes of a program listen at."""

import ipaddress
from collections import defaultdict
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

WORKER, RANK = "ray::", "ray::RayTrainWorker"
"""Ray's workers, by their titles, and those among them that are learners."""
DRIVER = "jobs.cli"
METRICS = {"/monitor.py": 44217, "dashboard/dashboard.py": 44227}
"""Parts of Ray's head, and the port where each shows its metrics if it is free."""


@dataclass(frozen=True, order=True)
class Listening:
    program: str
    """"gcs_server", "raylet", a Ray actor as "ray::ToolExecutor", or the name of a Python module."""
    address: str
    port: int
    pid: int = 0

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.address).is_loopback


def listening(pid: int) -> list[Listening]:
    """Those of a process and of all that it has started, TCP alone."""
    found = set[Listening]()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.Error):
            sockets, words = process.net_connections("tcp"), process.cmdline()
            if not words:  # it is ending: its sockets go after its memory
                continue
            for socket in sockets:
                if socket.status == psutil.CONN_LISTEN:
                    address = socket.laddr
                    found.add(Listening(program_of(words), address.ip, address.port, process.pid))
    return sorted(found)


def program_of(words: list[str]) -> str:
    """By its command line."""
    text = " ".join(words)
    if text.startswith("ray::"):
        return text.split(".")[0].split()[0]
    for name in ("gcs_server", "raylet/raylet", "dashboard/agent.py", "runtime_env/agent/main.py", *METRICS):
        if name in text:
            return name.rpartition("/")[2] if name == "raylet/raylet" else name
    return "VLLM" if "VLLM" in text else DRIVER if DRIVER in words else text[:80]


def unnamed(sockets: Iterable[Listening], named: Collection[str]) -> list[Listening]:
    """Those that reach beyond this machine and may not. Programs of these names may, and a worker of Ray, or a
    driver, by one port, its gRPC server's. Learners have further ones, for torch.distributed."""
    found: list[Listening] = []
    workers: dict[int, list[Listening]] = defaultdict(list)
    for one in sorted(sockets):
        if one.is_local or one.program in named or one.port == METRICS.get(one.program):
            continue
        if one.program.startswith(WORKER) or one.program == DRIVER:
            workers[one.pid].append(one)
        else:
            found.append(one)
    for ours in workers.values():
        if RANK not in {one.program for one in ours} and len({one.port for one in ours}) > 1:
            found += ours
    return found
