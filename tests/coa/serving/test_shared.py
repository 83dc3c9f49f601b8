"""What replicas share: responses that are being made, whoever asks for them, and what keys have used."""

import asyncio
from pathlib import Path

import pytest

from coa.json_object import Json
from coa.serving.limits.quotas import Quota
from coa.serving.shared import LOST_S, Shared
from coa.serving.store import StoreConfig, Stored


def stored(status: str = "queued", *output: Json, id: str = "r1") -> Stored:
    return Stored({"id": id, "status": status, "output": list(output)}, ())


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock) -> Shared:
    return Shared(StoreConfig(), clock)


async def status_of(shared: Shared, owner: str = "me", id: str = "r1") -> str | None:
    found = await shared.get(owner, id)
    return found.response["status"] if found else None


def test_a_response_is_there_while_it_is_made_and_once_it_has_ended(shared: Shared) -> None:
    async def go() -> None:
        await shared.begin("me", stored(), "a")
        assert await status_of(shared) == "queued"
        await shared.update("me", stored("in_progress").response)
        assert await status_of(shared) == "in_progress"
        assert await status_of(shared, "another") is None
        await shared.finish("me", stored("completed"))
        assert await status_of(shared) == "completed"

    asyncio.run(go())


def test_a_cancelled_response_stays_cancelled_and_its_replica_hears_of_it_at_once(shared: Shared) -> None:
    async def go() -> None:
        await shared.begin("me", stored(), "a")
        await shared.begin("me", stored(id="r2"), "b")
        hearing = asyncio.ensure_future(shared.cancellations("a", 60.0))
        open_item = {"type": "message", "status": "in_progress"}
        await shared.update("me", stored("in_progress", open_item).response)
        cancelled = await shared.cancel("me", "r1")
        assert cancelled == {"id": "r1", "status": "cancelled", "output": [{"type": "message", "status": "incomplete"}]}
        assert await hearing == ["r1"]
        await shared.update("me", stored("in_progress").response)
        await shared.finish("me", stored("completed"))
        assert await shared.cancel("me", "r1") == cancelled
        assert await status_of(shared, id="r2") == "queued"
        assert await shared.cancellations("a", 0.0) == []

    asyncio.run(go())


def test_what_is_deleted_while_it_is_made_is_cancelled_and_gone(shared: Shared) -> None:
    async def go() -> None:
        await shared.begin("me", stored(), "a")
        assert not await shared.delete("another", "r1")
        assert await shared.delete("me", "r1")
        assert await shared.cancellations("a", 60.0) == ["r1"]
        await shared.finish("me", stored("completed"))
        assert await status_of(shared) is None
        assert await shared.cancel("me", "r1") is None

    asyncio.run(go())


def test_a_response_whose_replica_is_gone_has_failed(shared: Shared, clock: Clock) -> None:
    async def go() -> None:
        await shared.begin("me", stored(), "a")
        await shared.begin("me", stored(id="r2"), "b")
        clock.now = LOST_S
        await shared.cancellations("b", 0.0)
        assert await status_of(shared) == "queued"
        clock.now += 1
        assert await status_of(shared) == "failed"
        assert await status_of(shared, id="r2") == "queued"

    asyncio.run(go())


def test_a_quota_is_one_for_all_who_ask(shared: Shared, clock: Clock) -> None:
    async def go() -> None:
        quota = Quota(tokens_per_minute=60)
        assert await shared.admit("me", quota) == 0
        await shared.spend("me", 89)
        assert await shared.admit("me", quota) == 30
        clock.now = 30.0
        assert await shared.admit("me", quota) == 0

    asyncio.run(go())


def test_a_response_that_a_server_did_not_finish_has_failed_for_the_next_one(tmp_path: Path) -> None:
    config = StoreConfig(path=tmp_path / "responses.sqlite")

    async def go() -> None:
        first = Shared(config)
        await first.begin("me", stored("in_progress", {"type": "message", "status": "in_progress"}), "a")
        await first.begin("me", stored(id="r2"), "a")
        await first.finish("me", stored("completed", id="r2"))
        again = Shared(config)
        assert await status_of(again, id="r2") == "completed"
        found = await again.get("me", "r1")
        assert found is not None
        assert (found.response["status"], found.response["error"]["code"]) == ("failed", "server_error")
        assert found.response["output"] == [{"type": "message", "status": "incomplete"}]
        assert await status_of(Shared(config)) == "failed", "it has ended for good"

    asyncio.run(go())
