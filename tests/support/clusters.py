"""Ray clusters as people start them, on ports and in folders of their own."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import ray

from tests.support.autoscaling import VARIABLES, written
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

ROOT = Path(__file__).parents[2]
RAY = Path(sys.executable).with_name("ray")


@dataclass(frozen=True)
class Cluster:
    dashboard: str
    gcs: str
    folder: Path
    """Ray's own files: sockets, logs."""
    environment: dict[str, str]
    """With the token, if there is one."""

    def processes(self) -> list[psutil.Process]:
        """Ray's own on this cluster, and what they have started."""
        found = set[psutil.Process]()
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if any(str(self.folder) in word for word in process.cmdline()):
                    found |= {process, *process.children(recursive=True)}
        return sorted(found, key=lambda process: process.pid)

    def join(self, *before: str, cpus: int = 2, words: Sequence[str] = ()) -> None:
        """Starts another node. before: what its command is run by. words: more arguments of Ray's."""
        words = [*before, str(RAY), "start", f"--address={self.gcs}", f"--num-cpus={cpus}", *COMMON, *words]
        subprocess.run(words, env=self.environment, check=True, capture_output=True, timeout=2 * PATIENCE_S)


COMMON = (
    *("--object-store-memory=100000000", "--min-worker-port=0", "--max-worker-port=0"),
    *("--dashboard-agent-listen-port=0", "--disable-usage-stats"),
)


@contextmanager
def head(
    mode: str,
    *words_of_ray: str,
    token: str = "",
    cpus: int = 4,
    grown: Mapping[str, Any] | None = None,
    before: Sequence[str] = (),
    address: str = "127.0.0.1",
    **variables: str,
) -> Iterator[Cluster]:
    """`ray start --head` with a mode of RAY_AUTH_MODE. Sockets have short paths, so it is not in a test's folder.

    words_of_ray: more of its arguments. grown: what its autoscaler may add, as `tests.support.autoscaling.written`
    takes it. before: what its command is run by. address: where it is reached."""
    folder = Path(tempfile.mkdtemp(prefix="coa-ray-"))
    port, dashboard = free_port(), free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {
        "RAY_AUTH_MODE": mode,
        "PATH": f"{RAY.parent}:{environment['PATH']}",
        "PYTHONPATH": str(ROOT),
        "WANDB_MODE": "disabled",
        # On a busy machine its own 30 s are not enough.
        "RAY_raylet_start_wait_time_s": "150",
        **({"RAY_AUTH_TOKEN": token} if token else {}),
        **(VARIABLES if grown else {}),
        **variables,
    }
    words = [
        *before,
        str(RAY),
        "start",
        "--head",
        f"--port={port}",
        f"--dashboard-port={dashboard}",
        f"--num-cpus={cpus}",
    ]
    words += [f"--ray-client-server-port={free_port()}", f"--temp-dir={folder}", *COMMON, *words_of_ray]
    if grown:
        seen_by_nodes = f"{ray.util.get_node_ip_address()}:{port}"
        words.append(f"--autoscaling-config={written(folder, seen_by_nodes, **grown)}")
    cluster = Cluster(f"http://{address}:{dashboard}", f"{address}:{port}", folder, environment)
    try:
        # Into a file: the processes that stay might keep a pipe open.
        said = folder / "start.txt"
        with said.open("w") as out:
            started = subprocess.run(
                words, env=environment, stdout=out, stderr=out, check=False, timeout=2 * PATIENCE_S
            )
        assert started.returncode == 0, said.read_text()
        yield cluster
    finally:
        for process in cluster.processes():
            with suppress(psutil.Error):
                process.kill()
        shutil.rmtree(folder, ignore_errors=True)
