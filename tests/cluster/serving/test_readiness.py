"""Whether a server says that it is ready."""

import asyncio
import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from cluster.serving.readiness import Probe, Readiness, readiness
from tests.support.patience import PATIENCE_S


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
    """Sees one state after the other, and its replica names one version after the other."""

    def __init__(self, *seen: Readiness, versions: Sequence[int | None] = ()) -> None:
        super().__init__("app", "deployment")
        self._states, self._versions = list(seen), list(versions)
        self.may_look = threading.Event()
        self.may_look.set()

    def _look(self) -> Readiness:
        assert self.may_look.wait(PATIENCE_S)
        return self._states.pop(0)

    async def _ask_version(self) -> int | None:
        return self._versions.pop(0) if self._versions else None


async def asked(probe: Probe) -> tuple[int, Any]:
    request: Any = None
    answer = await probe(request)
    return answer.status_code, json.loads(bytes(answer.body))["version"]


@pytest.mark.parametrize(("then", "status"), [(0, 200), (1, 503)])
def test_a_replica_that_goes_to_rest_while_it_is_asked_leaves_a_server_that_is_ready(then: int, status: int) -> None:
    probe = _Looking(readiness(1, "HEALTHY"), readiness(then, "HEALTHY"))
    assert asyncio.run(asked(probe)) == (status, None)


def test_a_replica_that_is_too_busy_to_name_its_weights_has_those_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.serving.readiness.STALE_S", -1.0)
    monkeypatch.setattr("cluster.serving.readiness.LOOK_EVERY_S", -1.0)
    up, down = readiness(1, "HEALTHY"), readiness(0, "UNHEALTHY")
    probe = _Looking(up, up, up, down, up, up, versions=(3, None, None))

    async def course() -> list[tuple[int, Any]]:
        return [await asked(probe) for _ in range(4)]

    assert asyncio.run(course()) == [(200, 3), (200, 3), (503, None), (503, None)]


def test_many_questions_make_one_look_and_wait_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cluster.serving.readiness.LOOK_EVERY_S", 0.0)
    probe = _Looking(readiness(1, "HEALTHY"), readiness(1, "HEALTHY"), versions=(1, 2))

    async def course() -> None:
        assert await asked(probe) == (200, 1)
        probe.may_look.clear()
        async with asyncio.timeout(PATIENCE_S):
            assert [await asked(probe) for _ in range(50)] == [(200, 1)] * 50
        probe.may_look.set()
        assert probe._looking is not None
        await probe._looking
        assert probe._states == [], "one more look"

    asyncio.run(course())


def test_who_leaves_takes_no_look_with_it() -> None:
    probe = _Looking(readiness(1, "HEALTHY"), versions=(1,))
    probe.may_look.clear()

    async def course() -> None:
        leaves, stays = asyncio.ensure_future(asked(probe)), asyncio.ensure_future(asked(probe))
        await asyncio.sleep(0)
        leaves.cancel()
        await asyncio.wait([leaves])
        probe.may_look.set()
        assert await stays == (200, 1)

    asyncio.run(course())
