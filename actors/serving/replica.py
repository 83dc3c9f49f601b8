"""A replica of the server: the process that holds an engine and answers HTTP. Ray Serve starts and ends them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig
from actors.serving.agent import ServedAgent
from actors.serving.app import make_app
from actors.serving.gate import Gate
from actors.serving.plain import PlainModel
from actors.serving.server import Server
from actors.serving.shared import AnyShared
from coa.agent.codec import Codec
from coa.agent.episode import AgentConfig
from coa.serving.config import ServingConfig
from coa.serving.escaping import Escaping, marks_of
from coa.serving.keys import KeyFile
from coa.serving.requests import PLAIN, Defaults
from coa.serving.shared import Shared
from coa.tools.client import Executor, RetryConfig, ToolCaller


class Replica:
    """A plain class; `cluster.serving` makes a deployment of it."""

    def __init__(
        self,
        model_dir: str,
        *,
        config: ServingConfig,
        engine: EngineConfig,
        agent: AgentConfig,
        executors: Sequence[Executor],
        retry: RetryConfig,
        shared: AnyShared | None = None,
    ) -> None:
        """executors: all of them, in the same order for all replicas. shared: None where this is the only replica."""
        self._model_dir, self._config = model_dir, config
        codec = Codec.load(Path(model_dir))
        self._escaping = Escaping(marks_of(codec.added_tokens()))
        self._policy = PolicyAdapter(
            model_dir, engine, max_tokens=agent.limits.max_tokens, tag_tokens=codec.tag_tokens()
        )
        shared = shared or Shared(config.store)
        tools = ToolCaller(executors, uuid4().hex)
        self._server = Server(
            ServedAgent(self._policy, tools, codec=codec, retry=retry),
            defaults=Defaults(agent),
            gate=Gate(KeyFile(config.keys) if config.keys else None, shared),
            shared=shared,
            config=config,
            version=self._policy.version,
        )

    def __serve_build_asgi_app__(self) -> Any:
        """Ray Serve asks for the application under this name."""
        return make_app(self._server, self._prepare, self._config.host)

    async def _prepare(self) -> None:
        await self._policy.name_version(0)
        self._server.plain = await PlainModel.of(
            self._policy.llm,
            self._model_dir,
            f"{self._config.name}:{PLAIN}",
            self._escaping,
            self._config.tool_parser,
        )

    async def check_health(self) -> None:
        """Ray Serve replaces the replica where this raises, or does not come back."""
        self._server.agent.check()
        await self._policy.version()
