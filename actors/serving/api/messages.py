"""Anthropic's Messages API, answered by the agent."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from functools import partial

from actors.serving.api.sse import event_text
from actors.serving.gate import Caller
from actors.serving.server import Server
from coa.json_object import Json
from coa.serving.events import Broke
from coa.serving.faults import fault_of
from coa.serving.protocols.messages import MessageWriter
from coa.serving.protocols.schemas import CountTokens, CreateMessage
from coa.serving.requests import AgentRequest, of_message, question_of_message


class MessagesApi:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def create(self, body: CreateMessage, who: Caller) -> Json:
        request, writer = await self._request(body, who), self._writer(body, who)
        async with aclosing(self._server.play(request, who)) as events:
            async for event in events:
                if isinstance(event, Broke):
                    raise fault_of(event.code, event.message)
                writer.take(event)
        return writer.whole()

    async def stream(self, body: CreateMessage, who: Caller) -> AsyncGenerator[str]:
        """Raises errors of the request before the stream begins."""
        return self._events(self._writer(body, who), await self._request(body, who), who)

    async def count_tokens(self, body: CountTokens) -> Json:
        """Number of tokens of the episode's prompt, before any result of a tool."""
        server = self._server
        profile, agent = server.target(body.model).profile, server.defaults.agent
        count = partial(server.agent.prompt_tokens, question_of_message(body), profile, agent)
        return {"input_tokens": await asyncio.to_thread(count)}

    async def _request(self, body: CreateMessage, who: Caller) -> AgentRequest:
        server = self._server
        return await server.admitted(of_message(body, server.target(body.model).profile, server.defaults), who)

    async def _events(self, writer: MessageWriter, request: AgentRequest, who: Caller) -> AsyncGenerator[str]:
        for event in writer.begin():
            yield event_text(event)
        async with aclosing(self._server.play(request, who)) as events:
            async for event in events:
                for sent in writer.take(event):
                    yield event_text(sent)

    def _writer(self, body: CreateMessage, who: Caller) -> MessageWriter:
        new_id = who.course.new_id
        message = {"id": new_id("msg"), "model": body.model, "role": "assistant"}
        return MessageWriter(message, new_id, self._server.mcp, body.coa.detail)
