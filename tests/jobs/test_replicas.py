"""Two replicas of `coa serve`, each with an engine of its own: they come and go with the load, and share what there is
of responses and quotas."""

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai.types.responses.response_item import McpCall

from coa.serving.keys import KeyFile
from coa.serving.limits.quotas import Quota
from jobs.run.agent_file import write_agent
from tests.jobs.test_serve import AGENT, ASKED, serving
from tests.support.mcp_server import Served
from tests.support.tiny import make_model

STEP_S = 300
"""Longest time in which a replica comes, or goes."""
MINUTE = 12
"""Requests that the limited key has in one."""
SCALING = ["target_requests=2", "up_after_s=1", "down_after_s=3", "look_back_s=3"]
AGENT_ONCE = {"model": "demo", "temperature": 1.0}
STREAM = {**AGENT_ONCE, "stream": True}
ALONE = {"model": "demo:plain", "max_tokens": 60, "ignore_eos": True}
LONG = {"input": "How many cups remain ?", "background": True, "temperature": 1.0}


@dataclass
class Load:
    """Requests of several kinds, one after the other in each of its clients, and what they were answered."""

    url: str
    key: str
    statuses: list[int] = field(default_factory=list)

    @asynccontextmanager
    async def of(self, clients: int, kinds: Sequence[dict[str, Any]] = ()) -> AsyncIterator[None]:
        ended = asyncio.Event()
        asking = [asyncio.ensure_future(self._ask(ended, kinds or (AGENT_ONCE, ALONE, STREAM))) for _ in range(clients)]
        try:
            yield
        finally:
            ended.set()
            await asyncio.gather(*asking)

    async def _ask(self, ended: asyncio.Event, kinds: Sequence[dict[str, Any]]) -> None:
        async with asking(self.url, self.key) as client:
            for body in itertools.cycle(kinds):
                if ended.is_set():
                    return
                answer = await client.post("/v1/chat/completions", json={**body, "messages": ASKED})
                whole = "data: [DONE]" in answer.text if body.get("stream") else "choices" in answer.json()
                self.statuses.append(answer.status_code if whole else 0)


def asking(url: str, key: str) -> httpx.AsyncClient:
    """A client each of whose requests has a connection of its own."""
    headers = {"authorization": f"Bearer {key}", "connection": "close"}
    return httpx.AsyncClient(base_url=url, timeout=STEP_S, headers=headers)


async def until_there_are(count: int, client: httpx.AsyncClient) -> None:
    deadline = time.monotonic() + STEP_S
    while (said := (await client.get("/readyz")).json())["replicas"] != count:
        assert time.monotonic() < deadline, f"no {count} replicas: {said}"
        await asyncio.sleep(0.5)


async def episodes(client: httpx.AsyncClient) -> dict[str, int]:
    """Episodes under way by replica: `/metrics` is that of one, so it is asked until both have answered."""
    found: dict[str, int] = {}
    deadline = time.monotonic() + 30
    while len(found) < 2:
        assert time.monotonic() < deadline, f"only {found} answer"
        text = (await client.get("/metrics")).text
        [(replica, running)] = re.findall(r'^coa_episodes{replica="(\w+)"} ([0-9.]+)', text, re.MULTILINE)
        found[replica] = int(float(running))
    return found


async def check_calls(client: httpx.AsyncClient) -> None:
    """The tag `code` is answered by a tool of an MCP server."""
    body = {"model": "demo", "input": "How many cups remain ?", "temperature": 1.0, "coa": {"detail": "all"}}
    answers = await asyncio.gather(*(client.post("/v1/responses", json=body) for _ in range(8)))
    calls = [item for answer in answers for item in answer.json()["output"] if item["type"] == "mcp_call"]
    assert calls, "its grammar makes even an untrained model call a tool now and then"
    for call in calls:
        McpCall.model_validate(call)
        assert (call["server_label"], call["name"]) == ("weather", "get_forecast")
    assert any(call["output"] and "rain" in call["output"] for call in calls)
    assert all(json.loads(call["arguments"]).keys() == {"city"} for call in calls), "the schema is the server's"


async def begin(client: httpx.AsyncClient, count: int) -> list[str]:
    """Ids of responses in the background."""
    begun = await asyncio.gather(*(client.post("/v1/responses", json={"model": "demo", **LONG}) for _ in range(count)))
    return [answer.json()["id"] for answer in begun]


async def check_what_is_shared(client: httpx.AsyncClient, limited: httpx.AsyncClient) -> None:
    """A response that one replica makes is found, and cancelled, by way of the other; a key's limit is of both."""
    ids = await begin(client, 12)
    found = await asyncio.gather(*(client.get(f"/v1/responses/{id}") for id in ids * 3))
    assert {answer.status_code for answer in found} == {200}, "whichever replica is asked"
    ids = await begin(client, 12)
    cancelled = await asyncio.gather(*(client.post(f"/v1/responses/{id}/cancel") for id in ids))
    statuses = [answer.json()["status"] for answer in cancelled]
    assert set(statuses) <= {"cancelled", "completed", "incomplete"}
    assert statuses.count("cancelled") >= 6, f"some may have ended before: {statuses}"
    for id, answer in zip(ids, cancelled, strict=True):
        assert (await client.get(f"/v1/responses/{id}")).json() == answer.json()
    deadline = time.monotonic() + 30
    while any((await episodes(client)).values()):
        assert time.monotonic() < deadline, "a response that was cancelled still runs"
    began = time.monotonic()
    nothing = {"model": "demo", "messages": []}
    asked = (limited.post("/v1/chat/completions", json=nothing) for _ in range(4 * MINUTE))
    statuses = [answer.status_code for answer in await asyncio.gather(*asked)]
    allowed = statuses.count(400)
    assert set(statuses) == {400, 429}
    assert MINUTE <= allowed <= MINUTE + 1 + MINUTE * (time.monotonic() - began) / 60, "of both together"


@pytest.fixture
def weather() -> Iterator[Served]:
    server = Served()
    yield server
    server.stop()


@pytest.mark.slow
def test_a_second_replica_comes_and_goes_without_a_failed_request_and_shares_what_there_is(
    tmp_path: Path, weather: Served
) -> None:
    model = make_model(tmp_path / "demo" / "model")
    write_agent(model, AGENT)
    keys = KeyFile(tmp_path / "keys.jsonl")
    key, few = keys.add("me", Quota(), 1), keys.add("few", Quota(requests_per_minute=MINUTE), 1)
    settings = ["serving.max_replicas=2", f"serving.keys={tmp_path / 'keys.jsonl'}", "placement.tool_cpus=0.1"]
    settings += ["placement.engine_cpus=0.25", *(f"serving.scaling.{one}" for one in SCALING)]
    settings += [f"tools.mcp.weather.url={weather.url}", "tools.mcp.weather.tags.code.tool=get_forecast"]
    often = {f"RAY_SERVE_{name}_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1" for name in ("REPLICA", "HANDLE")}

    async def go(url: str) -> list[int]:
        load = Load(url, key)
        async with asking(url, key) as client, asking(url, few) as limited:
            async with load.of(1):
                await until_there_are(1, client)
            async with load.of(5):
                await until_there_are(2, client)
            async with load.of(3, [ALONE]):  # enough for both to stay, and no episodes but those of the check
                await check_what_is_shared(client, limited)
                await check_calls(client)
            async with load.of(1):
                await until_there_are(1, client)
                body = {"model": "demo:plain", "messages": ASKED, "max_tokens": 2}
                assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        return load.statuses

    with serving(model, "replicas", *settings, env=often) as (url, _):
        statuses = asyncio.run(go(url))
    assert set(statuses) == {200}
    assert len(statuses) > 20
