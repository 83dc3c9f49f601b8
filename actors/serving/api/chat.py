"""OpenAI's chat completions and completions, answered by the agent."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from actors.serving.api.sse import DONE, data
from actors.serving.gate import Caller
from actors.serving.server import Server
from coa.concurrency import together
from coa.json_object import Json
from coa.serving.detail import Detail
from coa.serving.events import Broke
from coa.serving.faults import fault_of
from coa.serving.protocols.chat import ChatWriter, as_text, chat_completion, completion
from coa.serving.protocols.schemas import CreateChat, CreateCompletion
from coa.serving.requests import AgentRequest, of_chat, of_completion


class ChatApi:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def chat(self, body: CreateChat, who: Caller) -> Json:
        return chat_completion(
            _head("chatcmpl", body.model, who),
            await self._choices(await self._of_chat(body, who), who, body.coa.detail),
        )

    async def complete(self, body: CreateCompletion, who: Caller) -> Json:
        return completion(
            _head("cmpl", body.model, who),
            await self._choices(await self._of_completion(body, who), who, body.coa.detail),
        )

    async def stream_chat(self, body: CreateChat, who: Caller) -> AsyncGenerator[str]:
        """Raises errors of the request before the stream begins."""
        writer = ChatWriter(_head("chatcmpl", body.model, who), body.coa.detail)
        return self._chunks(writer, await self._of_chat(body, who), who, usage=_wants_usage(body))

    async def stream_complete(self, body: CreateCompletion, who: Caller) -> AsyncGenerator[str]:
        """Raises errors of the request before the stream begins."""
        writer = ChatWriter(_head("cmpl", body.model, who), body.coa.detail)
        return self._chunks(writer, await self._of_completion(body, who), who, usage=_wants_usage(body), text=True)

    async def _of_chat(self, body: CreateChat, who: Caller) -> AgentRequest:
        server = self._server
        return await server.admitted(of_chat(body, server.target(body.model).profile, server.defaults), who)

    async def _of_completion(self, body: CreateCompletion, who: Caller) -> AgentRequest:
        server = self._server
        return await server.admitted(of_completion(body, server.target(body.model).profile, server.defaults), who)

    async def _chunks(
        self, writer: ChatWriter, request: AgentRequest, who: Caller, *, usage: bool = False, text: bool = False
    ) -> AsyncGenerator[str]:
        """text: whether the chunks are those of completions instead of chat completions."""

        def sent(chunk: Json) -> str:
            told = as_text(chunk) if text else chunk
            return data(told) if told else ""

        for chunk in writer.begin():
            yield sent(chunk)
        async with aclosing(self._server.play(request, who)) as events:
            async for event in events:
                if isinstance(event, Broke):
                    yield data(fault_of(event.code, event.message).openai())
                for chunk in writer.take(event):
                    yield sent(chunk)
        if usage and not isinstance(writer.end, Broke):
            yield sent(writer.usage_chunk())
        yield DONE

    async def _choices(self, request: AgentRequest, who: Caller, detail: Detail) -> list[ChatWriter]:
        writers = [ChatWriter({}, detail) for _ in range(request.choices)]

        async def fill(sample: int, writer: ChatWriter) -> None:
            async with aclosing(self._server.play(request, who, sample)) as events:
                async for event in events:
                    if isinstance(event, Broke):
                        raise fault_of(event.code, event.message)
                    writer.take(event)

        await together(fill(sample, writer) for sample, writer in enumerate(writers))
        return writers


def _wants_usage(body: CreateChat | CreateCompletion) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage


def _head(prefix: str, model: str, who: Caller) -> Json:
    return {"id": who.course.new_id(prefix), "created": who.course.origin.began, "model": model}
