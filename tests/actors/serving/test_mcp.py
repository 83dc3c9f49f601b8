"""The agent as a tool, asked by the official client over Streamable HTTP."""

import asyncio
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from actors.serving.app import make_app
from coa.serving.keys import KeyFile
from coa.serving.limits.quotas import Quota
from tests.actors.serving.test_server import TURNS
from tests.support.agent_server import make_server
from tests.support.policies import AGENT
from tests.support.runners import Saying


async def call(app: Any, headers: dict[str, str]) -> Any:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app=app)
        async with (
            httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000", headers=headers) as client,
            streamable_http_client("http://127.0.0.1:8000/mcp", http_client=cast("Any", client)) as (read, write, *_),
            ClientSession(read, write) as session,
        ):
            await session.initialize()
            [tool] = (await session.list_tools()).tools
            assert tool.name == "ask"
            return await session.call_tool("ask", {"question": "Who is the mayor of Arden ?"})


def test_errors_are_logged_as_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])
    make_app(make_server(Saying()))
    assert [type(handler) for handler in logging.root.handlers] == [logging.StreamHandler]


def test_an_mcp_client_gets_the_agents_answer() -> None:
    found = asyncio.run(call(make_app(make_server(Saying(*TURNS))), {}))
    assert found.content[0].text == "Berg"


@pytest.mark.parametrize("right", [True, False])
def test_an_mcp_client_needs_a_key_where_there_are_keys(tmp_path: Path, right: bool) -> None:
    key = KeyFile(tmp_path / "keys.jsonl").add("me", Quota(), 1)
    app = make_app(make_server(Saying(*TURNS), keys=tmp_path / "keys.jsonl"))
    found = asyncio.run(call(app, {"authorization": f"Bearer {key if right else 'coa-1-2'}"}))
    assert found.is_error is not right
    assert found.content[0].text == ("Berg" if right else "Error executing tool ask: no such API key")


def test_an_episode_without_an_answer_is_an_error() -> None:
    """Else the agent that asks would take half of an answer for all of it."""
    unfinished = replace(AGENT, limits=replace(AGENT.limits, max_turns=1))
    found = asyncio.run(call(make_app(make_server(Saying(*TURNS), agent_config=unfinished)), {}))
    assert found.is_error
    assert found.content[0].text == "Error executing tool ask: the agent came to no answer: max_turns"


def test_it_answers_at_its_own_path_without_a_redirect() -> None:
    async def go() -> int:
        app = make_app(make_server(Saying()))
        async with app.router.lifespan_context(app):
            transport = httpx.ASGITransport(app=app)
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8000") as client:
                headers = {"accept": "application/json, text/event-stream"}
                ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
                return (await client.post("/mcp", json=ping, headers=headers)).status_code

    assert asyncio.run(go()) == 200
