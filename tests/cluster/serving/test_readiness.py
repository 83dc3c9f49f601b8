"""Whether a server says that it is ready."""

import pytest

from cluster.serving.readiness import readiness


@pytest.mark.parametrize(
    ("replicas", "status", "ready"),
    [
        (0, "NOT_STARTED", False),
        (0, "UPDATING", False),
        (0, "UPSCALING", False),
        (0, "UNHEALTHY", False),
        (0, "HEALTHY", True),
        (1, "UPSCALING", True),
        (2, "HEALTHY", True),
    ],
)
def test_a_server_is_ready_with_a_replica_or_where_it_rests(replicas: int, status: str, ready: bool) -> None:
    assert readiness(replicas, status).ready is ready
