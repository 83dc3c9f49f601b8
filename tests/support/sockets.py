"""Which ports the processes of a program listen at."""

import ipaddress
from contextlib import suppress
from dataclasses import dataclass

import psutil


@dataclass(frozen=True, order=True)
class Listening:
    program: str
    """"gcs_server", "raylet", "dashboard_agent", a Ray actor as "ray::ToolExecutor", or the name of a Python module."""
    address: str
    port: int

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches it."""
        return ipaddress.ip_address(self.address).is_loopback


def listening(pid: int) -> list[Listening]:
    """Those of a process and of all that it has started, TCP alone."""
    found = set[Listening]()
    for process in (psutil.Process(pid), *psutil.Process(pid).children(recursive=True)):
        with suppress(psutil.Error):
            for socket in process.net_connections("tcp"):
                if socket.status == psutil.CONN_LISTEN:
                    found.add(Listening(program_of(process.cmdline()), socket.laddr.ip, socket.laddr.port))
    return sorted(found)


def program_of(words: list[str]) -> str:
    """By its command line."""
    text = " ".join(words)
    if text.startswith("ray::"):
        return text.split(".")[0].split()[0]
    for name in ("gcs_server", "raylet/raylet", "dashboard/agent.py", "runtime_env/agent/main.py", "log_monitor.py"):
        if name in text:
            return name.rpartition("/")[2] if "agent" not in name else name
    return "VLLM" if "VLLM" in text else text[:80]
