"""A process that vLLM has started ends with the process that started it, and with nothing else."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from actors.rollout import structured_outputs
from tests.support.patience import soon

PARENT = """
import multiprocessing, sys, time
from tests.actors.rollout.test_structured_outputs import child

if __name__ == "__main__":
    process = multiprocessing.get_context(sys.argv[1]).Process(target=child, args=(sys.argv[2],))
    process.start()
    print(process.pid, flush=True)
    time.sleep(3600)
"""


def child(ready: str) -> None:
    """What a vLLM process does first, without xgrammar."""
    structured_outputs.make_exact = lambda: None
    structured_outputs.register()
    structured_outputs.register()
    Path(ready).touch()
    time.sleep(3600)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


@contextmanager
def family(method: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process, and the id of its child, which has registered the plugin."""
    script, ready = folder / "parent.py", folder / "ready"
    script.write_text(PARENT)
    root = str(Path(__file__).parents[3])
    parent = subprocess.Popen(
        [sys.executable, script, method, str(ready)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    pid = 0
    try:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert soon(ready.exists)
        yield parent, pid
    finally:
        parent.kill()
        parent.wait()
        if pid and alive(pid):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_a_child_ends_when_its_parent_is_killed_and_not_before(method: str, tmp_path: Path) -> None:
    with family(method, tmp_path) as (parent, pid):
        time.sleep(0.2)
        assert alive(pid), "its parent lives"
        parent.kill()
        assert soon(lambda: not alive(pid))


def test_a_process_that_multiprocessing_did_not_start_is_left_alone(tmp_path: Path) -> None:
    """Such as an actor: whoever started it may end before it."""
    script = "from actors.rollout.structured_outputs import end_with_parent; import threading; end_with_parent()"
    script += "; print(threading.active_count())"
    root = str(Path(__file__).parents[3])
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert told.stdout.strip() == "1"
