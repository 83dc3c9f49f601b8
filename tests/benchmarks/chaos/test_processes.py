"""Parts of a run are known by their titles, and whether they compute by the CPU time that they take."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from benchmarks.chaos.plan import Part
from benchmarks.chaos.processes import Below, descendants, end, part_of
from tests.support.patience import PATIENCE_S

SPINS = "while True: pass"
SLEEPS = "import time; time.sleep(60)"


@contextmanager
def process(title: str, code: str) -> Iterator["subprocess.Popen[bytes]"]:
    started = subprocess.Popen([title, "-c", code], executable=sys.executable)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


@pytest.mark.parametrize(
    ("title", "part"),
    [
        ("ray::RolloutEngine.events", Part.engine),
        ("ray::RolloutEngine.__init__", None),
        ("ray::RolloutEngine", Part.engine),
        ("VLLM::EngineCore", Part.core),
        ("ray::TrajectoryBuffer.next_event    ", Part.buffer),
        ("ray::RayTrainWorker", Part.rank),
        ("ray::TrainController.run", Part.controller),
        ("ray::SynchronizationActor", None),
        ("python -m jobs.cli", None),
        ("", None),
    ],
)
def test_titles(title: str, part: Part | None) -> None:
    assert part_of(title) is part


def test_a_look_tells_the_busy_from_the_idle_and_leaves_out_what_is_stopped() -> None:
    here = psutil.Process().pid
    with process("ray::ToolExecutor", SPINS) as spinning, process("VLLM::EngineCore", SLEEPS) as sleeping:
        ours = (spinning.pid, sleeping.pid)  # a worker of the suite may have Ray's processes beside them
        below = Below()
        list(below.look_below(time.time(), here))
        below.looked()
        spent = psutil.Process(spinning.pid)
        before = spent.cpu_times().user
        while spent.cpu_times().user - before < 0.2:
            time.sleep(0.05)
        looked = [(one, found.pid) for one, found in below.look_below(time.time(), here) if found.pid in ours]
        seen = {one.part: (one.busy, pid) for one, pid in looked}
        assert seen[Part.tools] == (True, spinning.pid)
        assert seen[Part.core][1] == sleeping.pid
        spent.suspend()
        while spent.status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        assert [found.pid for _, found in below.look_below(time.time(), here) if found.pid in ours] == [sleeping.pid]
        assert list(below.look_at(time.time(), spinning.pid, Part.driver)) == []
        spent.resume()


def test_a_node_ends_with_all_that_runs_on_it() -> None:
    # A process with another title does not know where its own executable is.
    code = f"import subprocess; subprocess.Popen([{sys.executable!r}, '-c', {SLEEPS!r}]).wait()"
    with process("raylet", code) as root:
        while not (children := descendants(root.pid)):
            assert root.poll() is None
            time.sleep(0.05)
        end(root.pid)
        gone, left = psutil.wait_procs(children, PATIENCE_S)
        assert (len(gone) + sum(one.status() == psutil.STATUS_ZOMBIE for one in left)) == 1
        assert root.wait(PATIENCE_S) == -9
        end(root.pid)
