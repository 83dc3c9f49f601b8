"""One replica of the server: the policy on vLLM, the agent, and the episodes that clients request."""

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing

from actors.serving.agent import ServedAgent, Spent
from actors.serving.gate import Caller, Gate
from actors.serving.plain import PlainModel
from actors.serving.shared import AnyShared
from coa.agent.profiles import PROFILES
from coa.concurrency import together
from coa.json_object import Json
from coa.serving.config import ServingConfig
from coa.serving.detail import AsThought, Detail
from coa.serving.events import Event, Finished, Returned, fingerprint
from coa.serving.faults import ApiError
from coa.serving.limits.backlog import Backlog
from coa.serving.requests import PLAIN, AgentRequest, Defaults, Target, target_of
from coa.serving.selection import selected
from coa.serving.stopping import Stopping
from coa.tools.mcp.binding import McpBinding

MAX_CHARS = 64
"""Upper bound of characters per token, for texts whose tokens are counted."""


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


class Server:
    """State that all protocols of one replica share: model names, the gate, and the agent that plays episodes."""

    def __init__(
        self,
        agent: ServedAgent,
        *,
        defaults: Defaults,
        gate: Gate,
        shared: AnyShared,
        config: ServingConfig,
        version: Callable[[], Awaitable[int]],
    ) -> None:
        self.agent, self.name, self.profile, self.config = agent, config.name, config.profile, config
        self.profiles = config.profiles or tuple(PROFILES)
        self._plain: PlainModel | None = None
        self.mcp: Mapping[str, McpBinding] = {}
        """The tools of MCP servers by the tags that they answer; set before the first request."""
        self.defaults, self.gate, self.shared = defaults, gate, shared
        self.version = version
        self.backlog = Backlog(config.max_wait_s)
        self._weights = 0
        self._began = int(time.time())

    @property
    def plain(self) -> PlainModel:
        """The model without the agent; set before the first request."""
        assert self._plain is not None
        return self._plain

    @plain.setter
    def plain(self, plain: PlainModel) -> None:
        self._plain = plain
        plain.name_weights(fingerprint((self._weights,)))

    @property
    def weights(self) -> int:
        """Version of the weights that the engine loaded last."""
        return self._weights

    @weights.setter
    def weights(self, version: int) -> None:
        self._weights = version
        if self._plain is not None:
            self._plain.name_weights(fingerprint((version,)))

    def target(self, model: str) -> Target:
        return target_of(model, self.name, self.profile, self.profiles)

    @property
    def names(self) -> list[str]:
        """Model names that a request may use."""
        return [self.name, *(f"{self.name}:{profile}" for profile in self.profiles), f"{self.name}:{PLAIN}"]

    def models(self) -> Json:
        return {"object": "list", "data": [self.model(name) for name in self.names]}

    def model(self, name: str) -> Json:
        """Raises ApiError for an unknown name."""
        each = {"object": "model", "created": self._began, "owned_by": "coa", "coa:version": self._weights}
        return {"id": self.target(name).model, **each}

    @property
    def max_tokens(self) -> int:
        """Maximum tokens that an episode, or a request to the model alone, reads and writes."""
        return self.defaults.agent.limits.max_tokens

    async def admitted(self, request: AgentRequest, who: Caller) -> AgentRequest:
        """Returns the request, with the tokens of its episodes reserved, which `play` spends; raises ApiError if the
        tools are overloaded, if its question leaves no tokens for the agent, or if the key's quota lacks them."""
        if not who.course.origin.again:
            self.backlog.admit()
        request = self._fitting(request)
        await self.gate.reserve(who, request.choices * request.samples * request.agent.limits.max_tokens)
        return request

    def _fitting(self, request: AgentRequest) -> AgentRequest:
        most = request.agent.limits.max_tokens
        # A longer text certainly has too many tokens, and counting them would block other requests.
        tokens = most if len(request.question) > MAX_CHARS * most else self._prompt_tokens(request)
        if tokens >= most:
            message = f"the question leaves no room: the agent reads and writes at most {most} tokens"
            raise ApiError(400, "context_length_exceeded", message)
        return request

    def _prompt_tokens(self, request: AgentRequest) -> int:
        return self.agent.prompt_tokens(request.question, request.profile, request.agent)

    async def play(self, request: AgentRequest, who: Caller, choice: int = 0) -> AsyncGenerator[Event]:
        """Yields the events of an answer's episode as they happen, in the request's detail. Of several samples, it
        yields those of the selected episode once all have ended."""
        thought = AsThought() if request.detail is Detail.standard else None
        async with aclosing(self._selected(request, who, choice)) as events:
            async for event in events:
                for shown in [event] if thought is None else thought.take(event):
                    yield shown

    async def _selected(self, request: AgentRequest, who: Caller, choice: int) -> AsyncGenerator[Event]:
        if request.samples == 1:
            async with aclosing(self._episode(request, who, choice)) as events:
                async for event in events:
                    yield event
            return
        first = choice * request.samples
        courses = await together(self._course(request, who, sample) for sample in range(first, first + request.samples))
        whole = [course for course in courses if isinstance(course[-1], Finished)]
        chosen = await asyncio.to_thread(selected, whole, request.select, request.profile) if whole else courses[0]
        for event in chosen:
            yield event

    async def _course(self, request: AgentRequest, who: Caller, sample: int) -> list[Event]:
        async with aclosing(self._episode(request, who, sample)) as events:
            return [event async for event in events]

    async def _episode(self, request: AgentRequest, who: Caller, sample: int) -> AsyncGenerator[Event]:
        """One episode; its tokens count for the key even if it is abandoned or fails."""
        spent, calls = Spent(self._prompt_tokens(request) if who.metered else 0), Counter[str]()
        try:
            stopping = Stopping(request.stop)
            # Only one episode is noted: those of several samples are sent when all have ended.
            course = who.course if request.choices * request.samples == 1 else None
            playing = self.agent.play(request, sample, salt=who.salt, spent=spent, course=course)
            async with aclosing(playing) as events:
                async for event in events:
                    if isinstance(event, Returned):
                        calls[event.tool] += 1
                    elif isinstance(event, Finished):
                        self.backlog.answered(calls)
                    for passed_on in stopping.take(event):
                        yield passed_on
        finally:
            self.gate.spend(who, spent.tokens, reserved=request.agent.limits.max_tokens)
