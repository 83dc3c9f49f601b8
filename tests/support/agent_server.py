"""A server whose policy is scripted, asked over ASGI: everything but vLLM and the network is real."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx

from actors.serving.agent import ServedAgent
from actors.serving.app import make_app
from actors.serving.gate import Gate
from actors.serving.server import Server
from actors.serving.shared import AnyShared
from coa.agent.episode import AgentConfig
from coa.errors import ToolDown
from coa.serving.config import ServingConfig
from coa.serving.keys import KeyFile
from coa.serving.requests import Defaults
from coa.serving.shared import Shared
from coa.serving.store import StoreConfig
from coa.tools.base import ToolCall
from coa.tools.client import ToolCaller
from tests.support.executors import Answering
from tests.support.fakes import tag_codec
from tests.support.policies import AGENT, AT_ONCE
from tests.support.runners import SEARCHES, Saying, echo


def make_server(
    policy: Any = None,
    answer: Callable[[ToolCall], Awaitable[str | ToolDown]] = echo,
    *,
    keys: Path | None = None,
    store: StoreConfig | None = None,
    shared: AnyShared | None = None,
    agent_config: AgentConfig = AGENT,
    **settings: Any,
) -> Server:
    agent = ServedAgent(
        policy or Saying(*SEARCHES), ToolCaller(Answering(answer), "server"), codec=tag_codec(), retry=AT_ONCE
    )

    async def version() -> int:
        return 3

    config = ServingConfig(name="afm", profile="mhqa", store=store or StoreConfig(), **settings)
    shared = shared or Shared(config.store)
    return Server(
        agent,
        defaults=Defaults(agent_config),
        gate=Gate(KeyFile(keys) if keys else None, shared),
        shared=shared,
        config=config,
        version=version,
    )


LOOP = asyncio.Runner()
"""In which servers live: what they begin for one request goes on in the next."""


class Asking:
    """A client of a server."""

    def __init__(self, server: Server, key: str = "") -> None:
        self._app, self._headers = make_app(server), {"authorization": f"Bearer {key}"} if key else {}

    async def ask(self, method: str, path: str, body: Any = None, **named: Any) -> httpx.Response:
        transport = httpx.ASGITransport(app=self._app, raise_app_exceptions=False)
        async with httpx.AsyncClient(
            transport=transport, base_url="http://127.0.0.1:8000", headers=self._headers
        ) as client:
            return await client.request(method, path, json=body, **named)

    def request(self, method: str, path: str, body: Any = None, **named: Any) -> httpx.Response:
        return LOOP.run(self.ask(method, path, body, **named))

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.request("POST", path, body)

    def events(self, path: str, body: Any) -> list[Any]:
        """The data of server-sent events, the last "[DONE]" as text."""
        response = self.post(path, {**body, "stream": True})
        assert response.status_code == 200, response.text
        lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
        return [line if line == "[DONE]" else json.loads(line) for line in lines]
