"""One replica of the server: the policy on vLLM, the agent on it, and what its clients may ask."""

import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from actors.serving.agent import ServedAgent
from actors.serving.gate import Caller, Gate
from actors.serving.plain import PlainModel, chunks_of
from coa.agent.profiles import PROFILES
from coa.concurrency import together
from coa.serving.chain import Closed
from coa.serving.events import Broke, Event, Finished, Returned
from coa.serving.faults import ApiError, fault_of, no_response
from coa.serving.protocols.chat import ChatWriter, as_text, chat_completion, completion
from coa.serving.protocols.messages import MessageWriter
from coa.serving.protocols.plain_responses import PlainWriter, chat_of, said
from coa.serving.protocols.resource import Resource
from coa.serving.protocols.responses import ResponseWriter
from coa.serving.protocols.schemas import CreateChat, CreateCompletion, CreateMessage, CreateResponse
from coa.serving.requests import (
    PLAIN,
    AgentRequest,
    Defaults,
    Target,
    fields_of,
    messages_of,
    of_chat,
    of_completion,
    of_message,
    of_response,
    read_messages,
    target_of,
)
from coa.serving.selection import selected
from coa.serving.store import ResponseStore, Stored

Json = dict[str, Any]
DONE = "data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class _Asked:
    """A response that is to be made."""

    how: AgentRequest | AsyncIterator[str]
    """An episode, or a stream of chat completions from the model alone."""
    resource: Resource
    said: tuple[Json, ...]
    """The messages that led to it."""
    store: bool


def new_id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"


class Server:
    """What the routes ask: one replica."""

    def __init__(
        self,
        agent: ServedAgent,
        *,
        name: str,
        profile: str,
        defaults: Defaults,
        gate: Gate,
        store: ResponseStore,
        version: Callable[[], Awaitable[int]],
    ) -> None:
        self.agent, self.name, self.profile = agent, name, profile
        self._plain: PlainModel | None = None
        self._defaults, self.gate, self._store = defaults, gate, store
        self.version = version
        self._began = int(time.time())

    @property
    def plain(self) -> PlainModel:
        """The model alone; set before the first request."""
        assert self._plain is not None
        return self._plain

    @plain.setter
    def plain(self, plain: PlainModel) -> None:
        self._plain = plain

    # --- models ---------------------------------------------------------------------------------------------------

    def target(self, model: str) -> Target:
        return target_of(model, self.name, self.profile)

    def models(self) -> Json:
        names = [self.name, *(f"{self.name}:{profile}" for profile in PROFILES), f"{self.name}:{PLAIN}"]
        data = [{"id": name, "object": "model", "created": self._began, "owned_by": "coa"} for name in names]
        return {"object": "list", "data": data}

    # --- chat completions -----------------------------------------------------------------------------------------

    async def chat(self, body: CreateChat, who: Caller) -> Json:
        request = of_chat(body, self.target(body.model).profile, self._defaults)
        return chat_completion(self._head("chatcmpl", body.model), await self._choices(request, who))

    async def complete(self, body: CreateCompletion, who: Caller) -> Json:
        request = of_completion(body, self.target(body.model).profile, self._defaults)
        return completion(self._head("cmpl", body.model), await self._choices(request, who))

    def stream_chat(self, body: CreateChat, who: Caller) -> AsyncGenerator[str]:
        request = of_chat(body, self.target(body.model).profile, self._defaults)
        usage = body.stream_options is not None and body.stream_options.include_usage
        return self._chunks(ChatWriter(self._head("chatcmpl", body.model)), request, who, usage=usage)

    def stream_complete(self, body: CreateCompletion, who: Caller) -> AsyncGenerator[str]:
        request = of_completion(body, self.target(body.model).profile, self._defaults)
        return self._chunks(ChatWriter(self._head("cmpl", body.model)), request, who, text=True)

    async def _chunks(
        self, writer: ChatWriter, request: AgentRequest, who: Caller, *, usage: bool = False, text: bool = False
    ) -> AsyncGenerator[str]:
        """text: as chunks of completions, not of chat."""

        def sent(chunk: Json) -> str:
            told = as_text(chunk) if text else chunk
            return _data(told) if told else ""

        for chunk in writer.begin():
            yield sent(chunk)
        async with aclosing(self._play(request, who)) as events:
            async for event in events:
                if isinstance(event, Broke):
                    yield _data(fault_of(event.code, event.message).openai())
                for chunk in writer.take(event):
                    yield sent(chunk)
        if usage and not isinstance(writer.end, Broke):
            yield sent(writer.usage_chunk())
        yield DONE

    async def _choices(self, request: AgentRequest, who: Caller) -> list[ChatWriter]:
        writers = [ChatWriter({}) for _ in range(request.choices)]

        async def fill(sample: int, writer: ChatWriter) -> None:
            async with aclosing(self._play(request, who, sample)) as events:
                async for event in events:
                    if isinstance(event, Broke):
                        raise fault_of(event.code, event.message)
                    writer.take(event)

        await together(fill(sample, writer) for sample, writer in enumerate(writers))
        return writers

    # --- messages -------------------------------------------------------------------------------------------------

    def _message_writer(self, model: str) -> MessageWriter:
        return MessageWriter({"id": new_id("msg"), "model": model, "role": "assistant"}, new_id)

    async def message(self, body: CreateMessage, who: Caller) -> Json:
        request = of_message(body, self.target(body.model).profile, self._defaults)
        writer = self._message_writer(body.model)
        async with aclosing(self._play(request, who)) as events:
            async for event in events:
                if isinstance(event, Broke):
                    raise fault_of(event.code, event.message)
                writer.take(event)
        return writer.whole()

    def stream_message(self, body: CreateMessage, who: Caller) -> AsyncGenerator[str]:
        request = of_message(body, self.target(body.model).profile, self._defaults)
        return self._message_events(body, request, who)

    async def _message_events(self, body: CreateMessage, request: AgentRequest, who: Caller) -> AsyncGenerator[str]:
        writer = self._message_writer(body.model)
        for event in writer.begin():
            yield _named(event)
        async with aclosing(self._play(request, who)) as events:
            async for event in events:
                for sent in writer.take(event):
                    yield _named(sent)

    # --- responses ------------------------------------------------------------------------------------------------

    async def respond(self, body: CreateResponse, who: Caller) -> Json:
        asked = await self._asked(body, who)
        async with aclosing(self._response(asked, who)) as steps:
            async for _ in steps:
                pass
        return asked.resource.response

    async def stream_response(self, body: CreateResponse, who: Caller) -> AsyncGenerator[str]:
        """Raises what is wrong with the request before the stream begins."""
        return self._response_events(await self._asked(body, who), who)

    async def _response_events(self, asked: _Asked, who: Caller) -> AsyncGenerator[str]:
        async with aclosing(self._response(asked, who)) as steps:
            async for events in steps:
                for event in events:
                    yield _named(event)
        yield DONE

    async def _asked(self, body: CreateResponse, who: Caller) -> _Asked:
        before, target = self._before(body, who), self.target(body.model)
        if target.plain:
            how: AgentRequest | AsyncIterator[str] = await self.plain.stream_chat(chat_of(body, before), who.salt)
        else:
            how = of_response(body, read_messages(before), target.profile, self._defaults)
        spoken = said(body) if target.plain else [message.model_dump() for message in messages_of(body)]
        fields = fields_of(body, self._defaults, new_id("resp"), int(time.time()), plain=target.plain)
        return _Asked(how, Resource(fields, new_id), (*before, *spoken), body.store is not False)

    async def _response(self, asked: _Asked, who: Caller) -> AsyncGenerator[list[Json]]:
        yield asked.resource.begin()
        match asked.how:
            case AgentRequest() as request:
                writer = ResponseWriter(asked.resource)
                async with aclosing(self._play(request, who)) as events:
                    async for event in events:
                        yield writer.take(event, int(time.time()))
            case stream:
                plain = PlainWriter(asked.resource)
                try:
                    async for chunk in chunks_of(stream):
                        yield plain.take(chunk)
                except ApiError as error:
                    yield plain.fail(error.code, error.message)
                    return
                yield plain.end(int(time.time()))
        if asked.store:
            self._store.put(who.key, Stored(asked.resource.response, (*asked.said, *asked.resource.conversation())))

    def _before(self, body: CreateResponse, who: Caller) -> tuple[Json, ...]:
        """The conversation that the request goes on from."""
        if body.previous_response_id is None:
            return ()
        stored = self._store.get(who.key, body.previous_response_id)
        if stored is None:
            raise no_response(body.previous_response_id, "previous_response_id")
        return stored.conversation

    async def stored(self, id: str, who: Caller) -> Json:
        stored = self._store.get(who.key, id)
        if stored is None:
            raise no_response(id)
        return stored.response

    async def delete(self, id: str, who: Caller) -> Json:
        if not self._store.delete(who.key, id):
            raise no_response(id)
        return {"id": id, "object": "response", "deleted": True}

    # --- episodes -------------------------------------------------------------------------------------------------

    async def _play(self, request: AgentRequest, who: Caller, choice: int = 0) -> AsyncGenerator[Event]:
        """The episode of an answer as it happens; of several, the one that is selected, once all have ended."""
        if request.samples == 1:
            async with aclosing(self._episode(request, who, choice)) as events:
                async for event in events:
                    yield event
            return
        first = choice * request.samples
        courses = await together(self._course(request, who, sample) for sample in range(first, first + request.samples))
        whole = [course for course in courses if isinstance(course[-1], Finished)]
        for event in selected(whole, request.select) if whole else courses[0]:
            yield event

    async def _course(self, request: AgentRequest, who: Caller, sample: int) -> list[Event]:
        async with aclosing(self._episode(request, who, sample)) as events:
            return [event async for event in events]

    async def _episode(self, request: AgentRequest, who: Caller, sample: int) -> AsyncGenerator[Event]:
        """One episode, whose tokens count for the key, also where it is left or breaks."""
        used = 0
        try:
            async with aclosing(self.agent.play(request, sample, salt=who.salt)) as events:
                async for event in events:
                    match event:
                        case Closed(tokens=tokens) | Returned(tokens=tokens):
                            used += tokens
                        case Finished(usage=usage):
                            used = usage.input_tokens + usage.output_tokens
                    yield event
        finally:
            self.gate.spend(who, used)

    def _head(self, prefix: str, model: str) -> Json:
        return {"id": new_id(prefix), "created": int(time.time()), "model": model}


def _data(event: Json) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def _named(event: Json) -> str:
    return f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
