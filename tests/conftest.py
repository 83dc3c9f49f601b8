"""What several test files share."""

import os
from collections.abc import Iterator

import pytest

# What `coa` starts in tests leaves wandb alone, but where a test asks for it.
os.environ["WANDB_MODE"] = "disabled"


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A small local Ray cluster of 4 (logical) CPUs for the whole test run."""
    # Unset, the mode depends on what was run on the machine before.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
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
