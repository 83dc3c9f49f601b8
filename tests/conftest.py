"""What several test files share."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

TAKE_THE_MACHINE = {
    "tests/actors/rollout/test_engine.py",
    "tests/actors/weights/test_loader.py",
    "tests/jobs/stages/test_async_loop.py",
    "tests/jobs/stages/test_synchronous.py",
    "tests/jobs/test_serve.py",
    "tests/jobs/test_train.py",
}
"""Files that keep two cores busy. Two of them side by side take longer than one after the other."""


def _takes_the_machine(nodeid: str) -> bool:
    return nodeid.split("::")[0] in TAKE_THE_MACHINE


def pytest_configure() -> None:
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes longest begins first, so that no worker ends long after the others."""
    items.sort(key=lambda item: not _takes_the_machine(item.nodeid))


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


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A small local Ray cluster of 4 (logical) CPUs for the whole test run."""
    # Unset, the mode depends on what was run on the machine before.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray

    # Ray itself would join a cluster that somebody else has started on this machine.
    ray.init(address="local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
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
