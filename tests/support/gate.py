"""The gate's second look: quick tests that fail are run once more, alone, so that a fault is told from an accident.

make test failures=FILE || python -m tests.support.gate FILE

Passes if all of them pass then; each is named as flaky, with its first failure. Everything else stays red: the same
test red twice, many at once, a worker that crashed, a test that hung, files that can't be imported, a run without an
end.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MOST = 3
"""Failures at once that may be accidents."""
HUNG = "from pytest-timeout"
"""What a failure says whose test was ended for its time."""
QUIET_S = 50.0
ROOMS = (Path("/dev/shm"), Path("/tmp"))
LEAST_MIB = 200


@dataclass(frozen=True, slots=True)
class Failure:
    test: str
    when: str
    """The phase ("setup", "call", "teardown"), "collect", or xdist's "???" of a worker that crashed."""
    text: str


class FailureLog:
    """A plugin of the process that prints: writes each failure into a file, and at the end pytest's exit status."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_text("")

    def _write(self, record: Mapping[str, Any]) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(record) + "\n")

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._write(asdict(Failure(report.nodeid, report.when, report.longreprtext)))

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._write(asdict(Failure(report.nodeid, "collect", report.longreprtext)))

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._write({"exit": int(exitstatus)})


class Heartbeat:
    """A plugin of the process that prints: says what runs where nothing was printed for a while."""

    def __init__(self) -> None:
        self._running: dict[str, float] = {}
        self._ended, self._last = threading.Event(), time.monotonic()
        self._thread = threading.Thread(target=self._beat, daemon=True)

    def pytest_sessionstart(self) -> None:
        self._output = os.dup(1)
        self._thread.start()

    def pytest_sessionfinish(self) -> None:
        self._ended.set()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._running[nodeid] = time.monotonic()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        self._running.pop(nodeid, None)
        self._last = time.monotonic()

    def _beat(self) -> None:
        while not self._ended.wait(QUIET_S / 5):
            now = time.monotonic()
            if now - self._last >= QUIET_S and self._running:
                self._last = now
                running = (f"{test} ({now - began:.0f} s)" for test, began in list(self._running.items()))
                os.write(self._output, f"\nrunning: {', '.join(running)}\n".encode())


def judge(records: Sequence[Mapping[str, Any]]) -> str | list[Failure]:
    """Why a run stays red, or else the failures that are looked at again."""
    failures = [Failure(**record) for record in records if "test" in record]
    if crashed := [one.test for one in failures if one.when == "???"]:
        return f"a worker crashed in {crashed[0]}"
    if broken := [one.test for one in failures if one.when == "collect"]:
        return f"can't be imported: {', '.join(broken)}"
    if hung := [one.test for one in failures if HUNG in one.text]:
        return f"hung: {', '.join(hung)}"
    if not records or "exit" not in records[-1]:
        return "the tests did not come to their end"
    if records[-1]["exit"] != 1:
        return f"pytest ended with status {records[-1]['exit']}"
    tests = {one.test for one in failures}
    if len(tests) > MOST:
        return f"{len(tests)} tests failed, more than the {MOST} that may be accidents"
    return failures or "no test says why it failed"


def full() -> list[str]:
    """What has no room left."""
    rooms = {room: shutil.disk_usage(room).free >> 20 for room in ROOMS}
    return [f"{room} has {mib} MiB left" for room, mib in rooms.items() if mib < LEAST_MIB]


def main(path: Path) -> int:
    records = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    found = judge(records)
    if isinstance(found, str):
        print(f"gate: {'; '.join([found, *full()])}")
        return 1
    tests = sorted({one.test for one in found})
    print(f"gate: a second look at {', '.join(tests)}", flush=True)
    if subprocess.run([sys.executable, "-m", "pytest", *tests], check=False).returncode != 0:
        print(f"gate: {'; '.join(['red twice, see above', *full()])}")
        return 1
    for one in found:
        print(f"flaky: {one.test}\nIts first failure, in its {one.when}:\n{one.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
