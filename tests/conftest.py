"""What several test files share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """A small local Ray cluster of 4 (logical) CPUs for the whole test run."""
    # Unset, the mode depends on what was run on the machine before.
    os.environ["RAY_AUTH_MODE"] = "disabled"
    import ray

    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
