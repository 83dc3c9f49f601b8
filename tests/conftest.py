"""What several test files share."""

import gc
import os
import signal
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from tests.support import gate, slow
from tests.support.smollm import make_smollm

TAKE_THE_MACHINE = {
    "tests/actors/rollout/test_engine.py",
    "tests/actors/weights/test_loader.py",
    "tests/jobs/stages/test_async_loop.py",
    "tests/jobs/stages/test_synchronous.py",
    "tests/jobs/test_serve.py",
    "tests/jobs/test_train.py",
}
"""Files that keep two cores busy. Two of them side by side take longer than one after the other."""


def _file(nodeid: str) -> str:
    return nodeid.split("::")[0]


def _takes_the_machine(nodeid: str) -> bool:
    return _file(nodeid) in TAKE_THE_MACHINE


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--part",
        choices=slow.PARTS,
        help="of the slow tests only those of a part of `make nightly`, and no others; one that is skipped fails, and "
        "the end is a table of minutes by file",
    )
    parser.addoption("--failures", metavar="FILE", type=Path, help="where tests.support.gate reads what failed")


def pytest_configure(config: pytest.Config) -> None:
    # Two processes of tests on two cores: with a thread a core in each, PyTorch's threads wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if not hasattr(config, "workerinput"):  # the process that prints
        config.pluginmanager.register(gate.Heartbeat())
        if failures := config.getoption("--failures"):
            config.pluginmanager.register(gate.FailureLog(failures))
    gc.disable()
    # In the background of a shell it is ignored, also by what tests start and then interrupt.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported stays to the end, so it is not searched for garbage: collecting takes a fifth less time."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no worker ends long after the others."""
    items.sort(key=lambda item: not _takes_the_machine(item.nodeid))
    if part := config.getoption("--part"):
        others = [item for item in items if _part_of(item) != part]
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in set(others)]


def _part_of(item: pytest.Item) -> str | None:
    return slow.part_of(_file(item.nodeid)) if "slow" in item.keywords else slow.RANDOM


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    """In a part, a slow test that is skipped fails: else what it needs would be missed by nobody."""
    report: pytest.TestReport = yield
    if report.skipped and "slow" in item.keywords and item.config.getoption("--part"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr)
        if not slow.may_be_skipped(reason) and not hasattr(report, "wasxfail"):
            report.outcome, report.longrepr = "failed", f"{item.nodeid} needs what is not there. {reason}"
    return report


TAKEN: defaultdict[str, float] = defaultdict(float)
"""Seconds of each file so far; with xdist, in the process that hands out the tests."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    TAKEN[_file(report.nodeid)] += report.duration


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if config.getoption("--part"):
        terminalreporter.section("minutes by file")
        for line in slow.minutes(TAKEN):
            terminalreporter.write_line(line)


@pytest.hookimpl(optionalhook=True)  # where pytest-xdist is not installed, as on a bare machine with a GPU
def pytest_xdist_make_scheduler(config: Any, log: Any) -> Any:
    """With `--dist loadfile`: a file is one worker's, and so are all files that take the machine; they begin first,
    where xdist would begin with the files of most tests."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return "files that take the machine" if _takes_the_machine(nodeid) else super()._split_scope(nodeid)

    if config.getvalue("dist") != "loadfile":
        return None
    config.option.loadscopereorder = False
    return Scheduling(config, log)


# What `coa` starts in tests leaves wandb alone, but where a test asks for it.
os.environ["WANDB_MODE"] = "disabled"
# Ray itself would start a cluster for who calls it without one: no test depends on which tests ran before it.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
# Ray reads it once for a process, so all clusters of one have one mode; unset, it depends on what ran on the machine.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ.update(
    {
        # Processes of a cluster may start slowly, where both cores are busy.
        "RAY_raylet_start_wait_time_s": "150",
        # It would end workers because of memory that others use.
        "RAY_memory_monitor_refresh_ms": "0",
    }
)

if find_spec("hypothesis"):  # not on a bare machine with a GPU
    from hypothesis import HealthCheck, settings

    # The same inputs in each run, however long one takes: what is green stays so. The nightly run draws its own.
    settings.register_profile(
        "quick", deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.register_profile("nightly", deadline=None, print_blob=True)
    settings.load_profile("nightly" if slow.NIGHTLY else "quick")


@pytest.fixture
def anyio_backend() -> str:
    """The event loop of tests that are coroutines."""
    return "asyncio"


@pytest.fixture(scope="module")
def ray_session() -> None:
    """A small local Ray cluster of 4 (logical) CPUs, which stays for the next files that want it."""
    import ray

    from cluster.session import start

    if not ray.is_initialized():
        # One after the other: two that start at once may choose the same ports.
        with FileLock(Path(tempfile.gettempdir()) / f"coa-tests-{os.getuid()}.lock"):
            # Ray itself would join a cluster that somebody else has started on this machine.
            start(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)


@pytest.fixture
def no_ray() -> None:
    """This process is on no Ray cluster, so that the test can start one of its own in it."""
    import ray

    ray.shutdown()


@pytest.fixture(scope="session")
def one_rank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of this process alone, for learners in it."""
    import torch.distributed as dist

    store = tmp_path_factory.mktemp("store") / "store"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("LOCAL_RANK", "0")
        yield
    dist.destroy_process_group()


@pytest.fixture(scope="session")
def smollm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a pretrained model, which nobody writes to."""
    return make_smollm(tmp_path_factory.mktemp("pretrained") / "SmolLM2-135M-Instruct")
