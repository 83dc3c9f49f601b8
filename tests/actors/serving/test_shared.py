"""Two replicas that share an actor: one answers for what the other makes."""

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from ray.exceptions import RayActorError

from actors.serving.app import make_app
from actors.serving.shared import RemoteShared
from coa.errors import ToolDown
from coa.serving.faults import ApiError
from coa.serving.keys import KeyFile
from coa.serving.limits.quotas import Quota
from coa.serving.shared import Shared
from coa.serving.store import StoreConfig
from coa.tools.base import ToolCall
from tests.support.agent_server import make_server
from tests.support.patience import until
from tests.support.runners import SEARCHES, Saying


def start_shared(store: StoreConfig) -> RemoteShared:
    """It is always the same minute."""
    import ray

    actor: Any = ray.remote(Shared)
    return RemoteShared(actor.options(num_cpus=0, max_concurrency=1000).remote(store, partial(float, 1)))


@pytest.mark.usefixtures("ray_session")
def test_replicas_share_responses_cancellations_and_quotas(tmp_path: Path) -> None:
    key = KeyFile(tmp_path / "keys.jsonl").add("me", Quota(requests_per_minute=9), 1)

    async def go() -> None:
        called, waiting = asyncio.Event(), 0

        async def hangs(call: ToolCall) -> str | ToolDown:
            nonlocal waiting
            waiting += 1
            called.set()
            try:
                await asyncio.Event().wait()
            finally:
                waiting -= 1
            raise AssertionError

        shared = start_shared(StoreConfig())
        policy: Any = Saying(*SEARCHES)
        servers = [make_server(policy, hangs, shared=shared, keys=tmp_path / "keys.jsonl") for _ in range(2)]
        one, two = (
            httpx.AsyncClient(
                transport=httpx.ASGITransport(app=make_app(server)),
                base_url="http://127.0.0.1:8000",
                headers={"authorization": f"Bearer {key}"},
            )
            for server in servers
        )
        begun = (await one.post("/v1/responses", json={"model": "afm", "input": "Who ?", "background": True})).json()
        await called.wait()
        assert (await two.get(f"/v1/responses/{begun['id']}")).json()["status"] in ("queued", "in_progress")
        cancelled = (await two.post(f"/v1/responses/{begun['id']}/cancel")).json()
        assert cancelled["status"] == "cancelled"
        assert (await one.get(f"/v1/responses/{begun['id']}")).json() == cancelled
        await until(lambda: not waiting and not servers[0].agent.under_way)
        question = {"model": "nobody's", "input": "Who ?"}
        codes = [(await client.post("/v1/responses", json=question)).status_code for client in (one, two) * 6]
        assert codes == [404] * 8 + [429] * 4, "nine a minute are of both together, the first one included"

    asyncio.run(go())


def test_an_actor_that_is_away_is_told_so() -> None:
    async def away(owner: str, id: str) -> None:
        raise RayActorError

    handle: Any = SimpleNamespace(get=SimpleNamespace(remote=away))
    with pytest.raises(ApiError, match="try again") as raised:
        asyncio.run(RemoteShared(handle).get("me", "r1"))
    assert raised.value.status == 503
