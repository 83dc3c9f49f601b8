"""Anthropic's Messages API, answered by the agent."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from actors.serving.api.sse import Json, named
from actors.serving.gate import Caller
from actors.serving.server import Server, new_id
from coa.serving.events import Broke
from coa.serving.faults import fault_of
from coa.serving.protocols.messages import MessageWriter
from coa.serving.protocols.schemas import CreateMessage
from coa.serving.requests import AgentRequest, of_message


class MessagesApi:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def create(self, body: CreateMessage, who: Caller) -> Json:
        request, writer = self._request(body), self._writer(body.model)
        async with aclosing(self._server.play(request, who)) as events:
            async for event in events:
                if isinstance(event, Broke):
                    raise fault_of(event.code, event.message)
                writer.take(event)
        return writer.whole()

    def stream(self, body: CreateMessage, who: Caller) -> AsyncGenerator[str]:
        """Raises errors of the request before the stream begins."""
        return self._events(body.model, self._request(body), who)

    def _request(self, body: CreateMessage) -> AgentRequest:
        server = self._server
        return server.fitting(of_message(body, server.target(body.model).profile, server.defaults))

    async def _events(self, model: str, request: AgentRequest, who: Caller) -> AsyncGenerator[str]:
        writer = self._writer(model)
        for event in writer.begin():
            yield named(event)
        async with aclosing(self._server.play(request, who)) as events:
            async for event in events:
                for sent in writer.take(event):
                    yield named(sent)

    def _writer(self, model: str) -> MessageWriter:
        return MessageWriter({"id": new_id("msg"), "model": model, "role": "assistant"}, new_id, self._server.mcp)
