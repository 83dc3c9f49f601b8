"""What a killed engine leaves outside of its run's folder."""

import fcntl
import multiprocessing
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from actors.rollout import leftovers
from actors.rollout.leftovers import PREFIX, SHARED_MEMORY, sweep

ROOT = Path(__file__).parents[3]
ENGINE = """
import multiprocessing
import socket
import sys
from actors.rollout.leftovers import own_place
folder = own_place()
socket.socket(socket.AF_UNIX).bind(str(folder / "rpc"))
lock = multiprocessing.get_context("spawn").Lock()
print(folder.name, flush=True)
sys.stdin.read()
"""


def engine(folder: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", ENGINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={"TMPDIR": str(folder), "PATH": "/usr/bin:/bin"},
    )


def test_a_folder_that_another_engine_sweeps_before_it_is_locked_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, swept = fcntl.flock, []

    def after_a_sweep(descriptor: int, kind: int) -> None:
        if not swept:
            swept.extend(tmp_path.iterdir())
            swept[0].rmdir()
        lock(descriptor, kind)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(leftovers.fcntl, "flock", after_a_sweep)
    process: Any = multiprocessing.current_process()
    monkeypatch.setitem(process._config, "semprefix", "/mp")
    folder = leftovers.own_place()
    assert folder.is_dir()
    assert folder not in swept


def semaphores(name: str) -> list[Path]:
    return list(SHARED_MEMORY.glob(f"sem.{name}-*"))


def test_what_a_killed_engine_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    if not SHARED_MEMORY.is_dir():
        pytest.skip("semaphores are no files here")
    (tmp_path / f"{PREFIX}file").touch()
    with engine(tmp_path) as dead, engine(tmp_path) as alive:
        assert dead.stdout is not None
        assert alive.stdout is not None
        one, two = dead.stdout.readline().strip(), alive.stdout.readline().strip()
        assert (len(semaphores(one)), len(semaphores(two))) == (1, 1)
        subprocess.run(["pkill", "-KILL", "-P", str(dead.pid)], check=False)  # what would tidy up, as Ray does
        dead.kill()
        dead.wait()
        sweep(tmp_path)
        assert not (tmp_path / one).exists()
        assert semaphores(one) == []
        assert (tmp_path / two / "rpc").is_socket()
        assert len(semaphores(two)) == 1
        with pytest.raises(ConnectionRefusedError), socket.socket(socket.AF_UNIX) as client:
            client.connect(str(tmp_path / two / "rpc"))  # bound, and nobody listens
        alive.communicate("")
    sweep(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{PREFIX}file"]
    assert semaphores(two) == []
