"""One command at a time works in a run's folder."""

import errno
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from coa.errors import UserError
from jobs.run import lease
from jobs.run.lease import BEAT_S, FILE, LAPSE_S, WATCH_S, Holder, hold, is_held, require_folder
from tests.support.patience import PATIENCE_S

US = Holder("here", 7, "2026-11-23 00:12:14", 5.0)
HOLDS = "import sys; from pathlib import Path; from jobs.run.lease import hold\n"
HOLDS += "with hold(Path(sys.argv[1])): print('held', flush=True); sys.stdin.read()"


@pytest.mark.parametrize(
    ("holder", "running", "silent_s", "held"),
    [
        (replace(US, pid=8), True, 0, True),
        (replace(US, pid=8), True, 2 * LAPSE_S, True),
        (replace(US, pid=8), False, 0, False),
        (US, True, 0, False),
        (replace(US, host="there"), False, LAPSE_S - 1, True),
        (replace(US, host="there"), False, LAPSE_S, False),
        (replace(US, host="there"), True, LAPSE_S, False),
    ],
)
def test_a_lease_is_held_by_a_process_that_runs_here_or_one_elsewhere_that_was_heard_of(
    holder: Holder, running: bool, silent_s: float, held: bool
) -> None:
    assert is_held(holder, by=US, running=running, silent_s=silent_s) is held


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process, which holds the lease of `run`."""
    command = [sys.executable, "-c", HOLDS, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_one_is_refused_and_told_who_holds_the_folder(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    folder = tmp_path / "run"
    since = json.loads((folder / FILE).read_text())["since"]
    with pytest.raises(UserError) as refused, hold(folder):
        pass
    who = f"process {other.pid} on {socket.gethostname()} since {since}"
    assert str(refused.value) == f"{folder} is in use: by {who}; end it, or choose another folder"
    assert [path.name for path in folder.iterdir()] == [FILE]


def test_a_holder_that_was_killed_is_taken_over_at_once(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    with hold(tmp_path / "run"):
        assert json.loads((tmp_path / "run" / FILE).read_text())["pid"] == os.getpid()
    assert list((tmp_path / "run").iterdir()) == []


def test_a_holder_that_ends_leaves_no_lease(tmp_path: Path, other: subprocess.Popen[str]) -> None:
    other.communicate()
    assert list((tmp_path / "run").iterdir()) == []
    with hold(tmp_path / "run"):
        pass


ELSEWHERE = {"host": "elsewhere", "pid": 4711, "since": "2026-11-23 00:12:14", "started": 1.0}


@pytest.mark.parametrize("jump_s", [3600.0, -3600.0])
@pytest.mark.parametrize("beats", [True, False])
def test_a_clock_that_jumps_makes_no_holder_on_another_host_dead_nor_a_dead_one_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float, beats: bool
) -> None:
    path = tmp_path / FILE
    path.write_text(json.dumps(ELSEWHERE))
    last = time.time() - jump_s
    os.utime(path, (last, last))
    watched: list[float] = []

    def watch(seconds: float) -> None:
        watched.append(seconds)
        if beats:
            os.utime(path)

    monkeypatch.setattr(lease, "time", SimpleNamespace(sleep=watch, strftime=time.strftime))
    if beats:
        with pytest.raises(UserError, match="in use: by process 4711 on elsewhere"), hold(tmp_path):
            pass
    else:
        with hold(tmp_path):
            assert json.loads(path.read_text())["pid"] == os.getpid()
    assert watched == [WATCH_S]
    assert WATCH_S > 2 * BEAT_S


def test_a_holder_on_another_host_is_taken_over_when_its_heartbeat_has_lapsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease, "WATCH_S", 0.0)
    (tmp_path / FILE).write_text(json.dumps(ELSEWHERE))
    with (
        pytest.raises(UserError, match="in use: by process 4711 on elsewhere since 2026-11-23 00:12:14"),
        hold(tmp_path),
    ):
        pass
    lapsed = time.time() - LAPSE_S - 1
    os.utime(tmp_path / FILE, (lapsed, lapsed))
    with hold(tmp_path):
        assert json.loads((tmp_path / FILE).read_text())["pid"] == os.getpid()


def test_the_heartbeat_renews_the_lease(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    beaten = threading.Event()
    utime = os.utime
    monkeypatch.setattr(lease, "BEAT_S", 0.01)
    monkeypatch.setattr(os, "utime", lambda *given: (utime(*given), beaten.set()))
    with hold(tmp_path):
        utime(tmp_path / FILE, (0, 0))
        beaten.clear()
        assert beaten.wait(PATIENCE_S)
        assert (tmp_path / FILE).stat().st_mtime > 0


def test_who_was_taken_over_ends_and_says_by_whom(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "BEAT_S", 0.01)

    def lose() -> None:
        with hold(tmp_path):
            (tmp_path / FILE).write_text(json.dumps(ELSEWHERE).ljust(512))
            threading.Event().wait(PATIENCE_S)

    with pytest.raises(UserError, match="was taken over: by process 4711 on elsewhere"):
        lose()
    assert json.loads((tmp_path / FILE).read_text()) == ELSEWHERE, "it is the other's"


def test_a_full_disk_is_said_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", full)
    with (
        pytest.raises(UserError, match=r"run can't be a run's folder: No space left on device"),
        hold(tmp_path / "run"),
    ):
        pass
    assert list((tmp_path / "run").iterdir()) == []


def test_a_disk_with_hardly_any_room_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    require_folder(tmp_path / "run")
    little = shutil.disk_usage(tmp_path)._replace(free=2**20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: little)
    with pytest.raises(UserError, match=r"run can't be a run's folder: its disk is full \(1\.0 MiB free, at least 16 "):
        require_folder(tmp_path / "run")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: little._replace(total=0, free=0))
    require_folder(tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
