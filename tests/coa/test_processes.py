"""Children that answer, and those that do not: this file is the child's module too."""

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from coa.processes import Child, ChildGone, serve


def answer(request: bytes) -> bytes:
    match request.partition(b" ")[::2]:
        case b"exit", status:
            sys.exit(int(status))
        case b"sleep", seconds:
            time.sleep(float(seconds))
        case b"print", text:
            print(text.decode() * 1000, flush=True)
        case b"work", seconds:
            while time.process_time() < float(seconds):
                pass
            time.sleep(3600)
        case b"linger", seconds:
            os.closerange(3, 64)
            time.sleep(float(seconds))
            os._exit(3)
        case b"environment", _:
            return repr(dict(os.environ)).encode()
    return request[::-1]


@pytest.fixture
def child() -> Iterator[Child]:
    child = Child("tests.coa.test_processes")
    child.started(60.0)
    yield child
    child.close()


def test_requests_of_any_length_are_answered_in_turn(child: Child) -> None:
    for request in (b"", b"abc", bytes(range(256)) * 40_000):
        assert child.ask(request, 60.0) == request[::-1]


def test_what_a_library_prints_is_no_answer(child: Child) -> None:
    assert child.ask(b"print noise", 60.0) == b"esion tnirp"
    assert child.ask(b"abc", 60.0) == b"cba"


def test_a_child_has_nothing_of_this_environment(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    assert b"PATH" in os.environb
    assert b"PATH" not in child.ask(b"environment", 60.0)


def test_a_child_that_takes_too_long_is_ended(child: Child) -> None:
    with pytest.raises(ChildGone, match="no answer in time") as caught:
        child.ask(b"sleep 3600", 0.2)
    assert caught.value.status is None
    assert not child.alive


def test_a_stopped_child_that_reads_nothing_is_ended_in_time(child: Child) -> None:
    os.kill(child.pid, signal.SIGSTOP)
    with pytest.raises(ChildGone, match="no answer in time"):
        child.ask(b"x" * (1 << 22), 0.2)  # more than a pipe holds
    assert not child.alive


@pytest.mark.parametrize(("request_", "status"), [(b"exit 3", 3), (b"sleep 3600", -signal.SIGKILL)])
def test_how_a_child_ended_by_itself_or_from_outside_is_said(child: Child, request_: bytes, status: int) -> None:
    killer = threading.Timer(0.5, os.kill, (child.pid, signal.SIGKILL))
    if status < 0:
        killer.start()
    with pytest.raises(ChildGone) as caught:
        child.ask(request_, 60.0)
    assert caught.value.status == status


def test_a_child_that_closes_its_pipes_long_before_it_ends_says_how_it_ended(child: Child) -> None:
    with pytest.raises(ChildGone) as caught:
        child.ask(b"linger 1.5", 60.0)
    assert caught.value.status == 3


@pytest.mark.parametrize(("request_", "busy", "wait_s"), [(b"work 2", True, 8.0), (b"sleep 3600", False, 1.0)])
def test_how_long_a_child_worked_is_said_where_it_gives_no_answer(
    child: Child, request_: bytes, busy: bool, wait_s: float
) -> None:
    with pytest.raises(ChildGone) as caught:
        child.ask(request_, wait_s)
    assert caught.value.status is None
    assert (caught.value.cpu_s > 0.5) is busy


def test_a_child_that_has_ended_says_so_when_it_is_asked(child: Child) -> None:
    child.end()
    with pytest.raises(ChildGone) as caught:
        child.ask(b"abc", 60.0)
    assert caught.value.status == -signal.SIGKILL


def test_a_module_that_is_not_there_does_not_start() -> None:
    with pytest.raises(ChildGone, match="ended with status 1"):
        Child("coa.nothing").started(60.0)


if __name__ == "__main__":
    serve(answer)
