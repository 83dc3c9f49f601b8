"""The gate's second look: an accident passes and is named, a fault stays red, and so does all that is no accident."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.gate import HUNG, MOST, Failure, judge
from tests.support.slow import ROOT


def failed(test: str, when: str = "call", text: str = "E  assert False") -> dict[str, Any]:
    return {"test": test, "when": when, "text": text}


ENDED = {"exit": 1}


def test_what_fails_is_looked_at_again_up_to_a_number() -> None:
    some = [failed(f"a.py::{number}", when) for number, when in enumerate(("setup", "call", "teardown"))]
    assert judge([*some, ENDED]) == [Failure(**one) for one in some]
    twice = [failed("a.py::1"), failed("a.py::1", "teardown")]
    assert judge([*twice, ENDED]) == [Failure(**one) for one in twice]
    many = [failed(f"a.py::{number}") for number in range(MOST + 1)]
    assert judge([*many, ENDED]) == "4 tests failed, more than the 3 that may be accidents"


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([failed("a.py::1", "???", "worker 'gw0' crashed"), ENDED], "a worker crashed in a.py::1"),
        ([failed("a.py", "collect"), {"exit": 2}], "can't be imported: a.py"),
        ([failed("a.py::1", text=f"Failed: Timeout (>1200.0s) {HUNG}."), ENDED], "hung: a.py::1"),
        ([failed("a.py::1")], "the tests did not come to their end"),
        ([], "the tests did not come to their end"),
        ([failed("a.py::1"), {"exit": 3}], "pytest ended with status 3"),
        ([ENDED], "no test says why it failed"),
    ],
)
def test_what_is_no_accident_stays_red(records: list[dict[str, Any]], why: str) -> None:
    assert judge(records) == why


TESTS = {
    "a failing assertion": ("def test_it(): assert 1 == 2", 1, "gate: red twice"),
    "one that fails the first time": (
        "from pathlib import Path\ndef test_it():\n    made = Path(__file__).with_name('made')\n"
        "    there = made.exists()\n    made.touch()\n    assert there, 'for the first time'",
        0,
        "for the first time",
    ),
    "a worker that is killed": ("import os\ndef test_it(): os.kill(os.getpid(), 9)", 1, "gate: a worker crashed in"),
    "a test that hangs": ("import time\ndef test_it(): time.sleep(3600)", 1, "gate: hung: "),
    "an import error": ("import nothing_of_this_name\ndef test_it(): ...", 1, "gate: can't be imported: "),
}


def played(*words: str, **how: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True, check=False, **how)


@pytest.mark.parametrize("name", TESTS)
def test_a_run_is_judged_by_what_it_did(name: str, tmp_path: Path) -> None:
    source, status, said = TESTS[name]
    (tmp_path / "conftest.py").write_text("from tests.conftest import *\n")
    (tmp_path / "test_it.py").write_text(source)
    how: dict[str, Any] = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    words = ["pytest", "-p", "no:cacheprovider", "-n", "1", "--timeout", "2" if "hangs" in name else "600"]
    first = played(*words, "--failures=failures", **how)
    assert first.returncode != 0
    second = played("tests.support.gate", "failures", **how)
    assert (second.returncode, said in second.stdout) == (status, True), second.stdout + first.stdout
    assert ("flaky: " in second.stdout) is (status == 0)
