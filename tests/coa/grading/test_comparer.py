"""The process that compares maths answers: every answer gets its verdict, and none ends or holds up anything."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from coa.errors import InfrastructureError
from coa.grading.equivalence import Comparer
from coa.processes import LimitedChild


@pytest.fixture(scope="module")
def comparer() -> Iterator[Comparer]:
    comparer = Comparer()
    yield comparer
    comparer.process.close()


@pytest.mark.parametrize(
    "text", ["not LaTeX at all: {", "\\", "$", "\\frac{", "{" * 99, "(" * 99, "\x00\ud800", "x\n\n$$y", "1/0"]
)
def test_what_can_not_be_read_is_not_equal_and_harms_nobody(comparer: Comparer, text: str) -> None:
    assert not comparer.equal(text, ("7",))
    assert not comparer.equal("7", (text,))
    assert comparer.equal("7", (text, "7"))


def test_an_endless_answer_is_not_equal_and_no_process_is_asked() -> None:
    comparer = Comparer()
    assert not comparer.equal("7" * 10_000_000, ("7",))
    assert not comparer.equal("\\boxed{" * 1_000_000 + "7", ("7",))
    assert not comparer.equal("7", ("7" * 10_000_000,))
    assert comparer.process.child is None


def test_an_answer_that_takes_for_ever_is_not_equal_and_the_next_one_is_compared() -> None:
    comparer = Comparer(limit_s=1)
    child = comparer.process.child = comparer.process._start()
    assert not comparer.equal("$9^{9^{9}}$", ("3",))
    assert child._process.returncode == -signal.SIGXCPU
    comparer.process._limit_s = 60  # its first comparison warms a child up
    assert comparer.equal("$\\frac{1}{2}$", ("0.5",))
    comparer.process.close()


def test_a_child_that_was_killed_from_outside_makes_no_answer_wrong() -> None:
    comparer = Comparer()
    assert comparer.equal("\\frac{1}{2}", ("0.5",))
    child = comparer.process.child
    assert child is not None
    child.end()
    try:
        with pytest.raises(InfrastructureError):
            comparer.equal("\\frac{1}{2}", ("0.5",))
        assert comparer.equal("\\frac{1}{2}", ("0.5",))
    finally:
        comparer.process.close()


ODD = [
    r"(2,+\infty)", r"[2,+\infty)", r"(-\infty,+\infty)", r"\infty-\infty", r"\frac{\infty}{\infty}",
    r"0\cdot\infty", "0/0", "0^{-1}",
    r"\ln 0", r"\log_1 1", r"\sqrt[0]{7}", r"\tan\frac{\pi}{2}", r"\begin{pmatrix}1&2\\3\end{pmatrix}",
    r"\begin{pmatrix}\end{pmatrix}",
    r"\begin{pmatrix}1&1\\1&1\end{pmatrix}^{-1}", r"\begin{cases}x&x>0\end{cases}", r"\sqrt{" * 40 + "2" + "}" * 40,
    "-" * 1900 + "1",
    "x^" * 600 + "x", "1+" * 900 + "1", "\\left(" * 60, "\\frac" * 300, "<" * 200, "=" * 200, r"x\le" * 200 + "x",
    r"\pm" * 100, "1e999999999",
    "9" * 1999, "7/" + "9" * 1500, "0.\\overline{" + "4" * 900 + "}", "\x00" * 99, "\ud800\udfff", "\u202e7",
    "½" * 500, "\\" * 999, "]0,1[" * 100,
]  # fmt: skip


@pytest.mark.parametrize("answer", ODD)
def test_an_odd_answer_gets_its_verdict_and_does_not_end_the_child(comparer: Comparer, answer: str) -> None:
    assert comparer.equal("1/2", ("0.5",))
    child = comparer.process.child
    for gold in ("7", r"\frac{1}{3}", r"(3,\infty)"):
        assert not comparer.equal(answer, (gold,))
    assert comparer.process.child is child


def test_a_verdict_that_takes_longer_than_anybody_waits_is_no_failure_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comparer = Comparer(limit_s=60)
    assert comparer.equal("\\frac{1}{2}", ("0.5",))
    monkeypatch.setattr(LimitedChild, "PATIENCE_S", 5.0)
    assert not comparer.equal("$9^{9^{9}}$", ("3",))
    comparer.process.close()


def test_a_child_that_is_killed_while_an_answer_keeps_it_busy_is_the_answers_fault() -> None:
    comparer = Comparer(limit_s=60)
    assert comparer.equal("\\frac{1}{2}", ("0.5",))
    assert comparer.process.child is not None
    pid = comparer.process.child.pid
    killer = threading.Thread(target=kill_when_busy, args=(pid,))
    killer.start()
    assert not comparer.equal("$9^{9^{9}}$", ("3",))
    killer.join()
    comparer.process.close()


def kill_when_busy(pid: int) -> None:
    process = psutil.Process(pid)
    before = process.cpu_times().user
    while process.cpu_times().user < before + 1:
        time.sleep(0.1)
    process.kill()


def test_the_child_has_nothing_of_this_environment(comparer: Comparer) -> None:
    assert comparer.equal("1", ("1.0",))
    assert comparer.process.child is not None
    assert "PATH" in os.environ
    assert Path(f"/proc/{comparer.process.child.pid}/environ").read_bytes() == b""
