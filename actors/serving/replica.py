"""A replica of the server: the process that holds an engine and answers HTTP. Ray Serve starts and ends them."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from uuid import uuid4

from starlette.types import ASGIApp

from actors.handles import Handle
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig, KvOnUpdate
from actors.serving.agent import ServedAgent
from actors.serving.app import make_app
from actors.serving.follower import Follower
from actors.serving.gate import Gate
from actors.serving.metrics import ServingMetrics, kv_use
from actors.serving.plain import PlainModel
from actors.serving.server import Server
from actors.serving.shared import AnyShared, RemoteShared
from actors.tools.remote import ToolClient
from actors.weights.manifest import Weights
from actors.weights.transport import Published
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.errors import ExecutorLost
from coa.serving.config import ServingConfig
from coa.serving.escaping import Escaping
from coa.serving.following import newest
from coa.serving.keys import KeyFile
from coa.serving.limits.backlog import Calls
from coa.serving.requests import PLAIN, Defaults
from coa.serving.scaling import KV_USE, RUNNING
from coa.serving.shared import Shared
from coa.tools.client import RetryConfig, ToolCaller

LOOK_S = 2.0
"""Seconds between two looks at the calls that wait for tools."""


class Replica:
    """A plain class; `cluster.serving.deployment` makes a deployment of it."""

    def __init__(
        self,
        model_dir: str,
        *,
        config: ServingConfig,
        engine: EngineConfig,
        agent: AgentConfig,
        tools: Callable[[], ToolClient],
        retry: RetryConfig,
        shared: Handle | None = None,
        gpus: float = 0.0,
    ) -> None:
        """tools: returns the tools of this replica; called once. shared: handle of the deployment with the
        state that replicas share; None if this is the only replica. gpus: reserved for this replica."""
        self._model_dir, self._config = model_dir, config
        # Requests of vLLM's handlers use the same cache salt for all versions, so the cache must not outlive an update.
        engine = replace(engine, kv_on_update=KvOnUpdate.recompute)
        codec = Codec.load(Path(model_dir))
        self._escaping = Escaping(codec.untrusted)
        self._policy = PolicyAdapter(
            model_dir,
            engine,
            max_tokens=agent.limits.max_tokens,
            tag_tokens=codec.tag_tokens(),
            measured=True,
            gpus=gpus,
        )
        name = uuid4().hex
        self._tools = tools()
        common: AnyShared = Shared(config.store) if shared is None else RemoteShared(shared)
        self._following: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._follower = None
        if config.follow is not None:
            look = partial(newest, config.follow)
            self._follower = Follower(look, self._load, every_s=config.follow_every_s)
        self._server = Server(
            ServedAgent(
                self._policy,
                ToolCaller(self._tools, name),
                codec=codec,
                retry=retry,
                metrics=ServingMetrics(name[:8]),
            ),
            defaults=Defaults(agent),
            gate=Gate(KeyFile(config.keys) if config.keys else None, common),
            shared=common,
            config=config,
            version=self._policy.version,
        )

    def __serve_build_asgi_app__(self) -> ASGIApp:
        """Builds the ASGI application; Ray Serve calls this method by name."""
        return make_app(self._server, self._prepare, self._config.host)

    async def _prepare(self) -> None:
        self._server.mcp = await self._tools.mcp()
        self._watching = asyncio.ensure_future(self._watch())
        await self._policy.name_version(0)
        if self._follower is not None:
            await self._follower.catch_up()
            self._following = asyncio.ensure_future(self._follower.run())
        self._server.plain = await PlainModel.of(
            self._policy.llm,
            self._model_dir,
            f"{self._config.name}:{PLAIN}",
            self._escaping,
            self._config.tool_parser,
        )

    async def _watch(self) -> None:
        """Tells the server how many calls wait for tools."""
        while True:
            try:
                counts = await self._tools.stats()
            except ExecutorLost:
                counts = {}
            self._server.backlog.see(time.monotonic(), {t: Calls(c.ran, c.waiting) for t, c in counts.items()})
            await asyncio.sleep(LOOK_S)

    async def _load(self, version: int, weights: Published | Weights) -> float:
        pause_s = await self._policy.load(version, weights)
        self._server.weights = version
        return pause_s

    async def version(self) -> int:
        """Version of the weights."""
        return await self._policy.version()

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Metrics that `cluster.serving.scaling` uses; Ray Serve calls this method by name every few seconds."""
        requests = self._policy.requests
        alone = max(0, requests - self._policy.generating)
        # vLLM updates the gauge only at its steps, so without requests it is stale.
        return {RUNNING: self._server.agent.under_way + alone, KV_USE: kv_use() if requests else 0.0}

    async def check_health(self) -> None:
        """Raises if the replica is broken; Ray Serve replaces it then, or if this does not return in time."""
        self._server.agent.check()
        for task in (self._following, self._watching):
            if task is not None and task.done():
                task.result()
        await self._policy.version()
