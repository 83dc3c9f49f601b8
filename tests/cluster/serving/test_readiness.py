"""Whether a server says that it is ready."""

import asyncio
from typing import Any

import pytest

from cluster.serving.readiness import Probe, Readiness, readiness


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


class _Looking(Probe):
    """Sees one state after the other, and no replica names its weights."""

    def __init__(self, *seen: Readiness) -> None:
        super().__init__("app", "deployment")
        self._seen = list(seen)

    def _look(self) -> Readiness:
        return self._seen.pop(0)

    async def _version(self) -> int | None:
        return None


@pytest.mark.parametrize(("then", "status"), [(0, 200), (1, 503)])
def test_a_replica_that_goes_to_rest_while_it_is_asked_leaves_a_server_that_is_ready(then: int, status: int) -> None:
    probe = _Looking(readiness(1, "HEALTHY"), readiness(then, "HEALTHY"))
    request: Any = None
    assert asyncio.run(probe(request)).status_code == status
