"""The Responses API, answered by the agent or by the model without tools.

A background response is made by a task of the replica that got the request. Its progress and its cancellation go
through the state that all replicas share (`coa.serving.shared`).
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from actors.serving.api.sse import DONE, event_text
from actors.serving.gate import Caller
from actors.serving.plain import chunks_of
from actors.serving.server import Server, new_id
from coa.concurrency import beyond_caller
from coa.json_object import Json
from coa.serving.faults import ApiError, invalid, no_response
from coa.serving.parameters import Protocol, check_model
from coa.serving.protocols.plain_responses import PlainWriter, chat_of, input_messages
from coa.serving.protocols.resource import RUNNING, Resource
from coa.serving.protocols.responses import ResponseWriter
from coa.serving.protocols.schemas import CreateResponse
from coa.serving.requests import AgentRequest, explicit_fields, fields_of, messages_of, of_response, read_messages
from coa.serving.resumption import seed_of
from coa.serving.store import Stored

logger = logging.getLogger(__name__)
RETRY_S = 1.0
"""Seconds between two attempts to reach the shared state."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A response to be made."""

    how: AgentRequest | AsyncGenerator[str]
    """Request for an episode, or a stream of chat completion chunks from the model without tools."""
    resource: Resource
    said: tuple[Json, ...]
    """The messages of the conversation before the response."""

    def stored(self) -> Stored:
        """The stored form of the response in its current state."""
        said = (*self.said, *self.resource.conversation()) if self.resource.ended else self.said
        return Stored(self.resource.snapshot(), said)


class ResponsesApi:
    def __init__(self, server: Server) -> None:
        self._server, self._shared = server, server.shared
        self._replica = new_id("replica")
        self._tasks: dict[str, asyncio.Task[None]] = {}
        """Tasks of background responses, by response id."""
        self._beginning = 0
        """Number of background responses that have no task yet."""
        self._watching: asyncio.Task[None] | None = None

    async def create(self, body: CreateResponse, who: Caller) -> Json:
        if body.background:
            return await self._begin(body, who)
        asked = await self._prepare(body, who)
        async with aclosing(self._response(asked, who)) as steps:
            async for _ in steps:
                pass
        return asked.resource.response

    async def stream(self, body: CreateResponse, who: Caller) -> AsyncGenerator[str]:
        """Raises errors of the request before the stream begins."""
        if body.background:
            raise invalid("a response in the background has no stream; ask for it with GET", "stream")
        return self._events(await self._prepare(body, who), who)

    async def _events(self, asked: _Asked, who: Caller) -> AsyncGenerator[str]:
        async with aclosing(self._response(asked, who)) as steps:
            async for events in steps:
                for event in events:
                    yield event_text(event)
        yield DONE

    async def _prepare(self, body: CreateResponse, who: Caller) -> _Asked:
        server = self._server
        before, target = await self._before(body, who), server.target(body.model)
        course = who.course
        fields = fields_of(
            body,
            server.defaults,
            course.new_id("resp"),
            course.origin.began,
            plain=target.plain,
            stores=server.config.store.entries > 0,
        )
        resource = Resource(fields, course.new_id, body.coa.detail)
        if not target.plain:
            spoken = [message.model_dump() for message in messages_of(body)]
            asked = of_response(body, read_messages(before), target.profile, server.defaults)
            request = await server.admitted(asked, who)
            return _Asked(request, resource, (*before, *spoken))
        check_model(Protocol.responses, explicit_fields(body))
        chat = chat_of(body, before)
        if body.stream:  # so that another replica makes the same stream
            chat = {"seed": seed_of(course.origin), **chat}
        stream = await server.gate.reserved(who, server.max_tokens, server.plain.stream_chat(chat, who.salt))
        return _Asked(stream, resource, (*before, *input_messages(body)))

    async def _before(self, body: CreateResponse, who: Caller) -> tuple[Json, ...]:
        """The conversation that the request continues."""
        id = body.previous_response_id
        if id is None:
            return ()
        stored = await self._shared.get(who.key, id)
        if stored is None:
            raise no_response(id, "previous_response_id")
        if stored.response["status"] in RUNNING:
            raise invalid(f"response {id!r} has not ended", "previous_response_id")
        return stored.conversation

    # --- while it is made -----------------------------------------------------------------------------------------

    async def _response(self, asked: _Asked, who: Caller) -> AsyncGenerator[list[Json]]:
        """Yields the events of each step. The response is stored before its last events are yielded."""
        resource = asked.resource
        if not resource.response["background"]:
            yield resource.begin()
        match asked.how:
            case AgentRequest() as request:
                making = self._episode(request, resource, who)
            case stream:
                making = self._plain(stream, resource, who)
        async with aclosing(making) as steps:
            async for events in steps:
                if resource.ended and resource.response["background"]:
                    await self._shared.finish(who.key, asked.stored())
                elif resource.ended and resource.response["store"]:
                    await self._keep(asked, who, events)
                yield events

    async def _keep(self, asked: _Asked, who: Caller, events: list[Json]) -> None:
        """Stores the response. If that fails, the client still gets the answer, with `store` set to false."""
        try:
            await self._shared.put(who.key, asked.stored())
        except ApiError as error:
            logger.warning("a response is not stored: %s", error)
            for told in (asked.resource.response, *(event["response"] for event in events if "response" in event)):
                told["store"] = False

    async def _episode(self, request: AgentRequest, resource: Resource, who: Caller) -> AsyncGenerator[list[Json]]:
        writer = ResponseWriter(resource, self._server.mcp)
        async with aclosing(self._server.play(request, who)) as events:
            async for event in events:
                yield writer.take(event)

    async def _plain(self, stream: AsyncGenerator[str], resource: Resource, who: Caller) -> AsyncGenerator[list[Json]]:
        writer = PlainWriter(resource)
        try:
            async with aclosing(chunks_of(stream)) as chunks:
                async for chunk in chunks:
                    yield writer.take(chunk)
            yield writer.end(int(time.time()), self._server.weights)
        except ApiError as error:
            yield writer.fail(error.code, error.message)
        finally:
            self._server.gate.spend(who, writer.tokens, reserved=self._server.max_tokens)

    # --- in the background ----------------------------------------------------------------------------------------

    async def _begin(self, body: CreateResponse, who: Caller) -> Json:
        config = self._server.config
        if body.store is False or not config.store.entries:
            raise invalid("a response in the background has to be stored, and this one is not", "background")
        if len(self._tasks) + self._beginning >= config.max_background:
            raise ApiError(429, "too_many_responses", "too many responses in the background", retry_after_s=RETRY_S)
        self._beginning += 1
        try:
            asked = await self._prepare(body, who)
            begun = asked.stored()
            await self._shared.begin(who.key, begun, self._replica)
            id = begun.response["id"]
            self._tasks[id] = beyond_caller(self._make(asked, who))
            self._tasks[id].add_done_callback(lambda _: self._tasks.pop(id))
        finally:
            self._beginning -= 1
        if self._watching is None or self._watching.done():
            self._watching = beyond_caller(self._watch())
        return begun.response

    async def _make(self, asked: _Asked, who: Caller) -> None:
        """Makes a background response, and updates its stored state after each step except text deltas."""
        resource = asked.resource
        try:
            resource.begin()
            await self._shared.update(who.key, resource.snapshot())
            async with aclosing(self._response(asked, who)) as steps:
                async for events in steps:
                    if not all(event["type"].endswith(".delta") for event in events):
                        await self._shared.update(who.key, resource.snapshot())
        finally:
            if not resource.ended:
                # An unexpected exception, which is logged; for a cancelled response this has no effect.
                resource.fail("server_error", "the server failed at this request")
                await self._shared.finish(who.key, asked.stored())

    async def _watch(self) -> None:
        """Cancels the tasks of cancelled responses, for as long as there are tasks."""
        while self._tasks:
            try:
                cancelled = await self._shared.cancellations(self._replica)
            except ApiError:
                await asyncio.sleep(RETRY_S)
                continue
            for id in cancelled:
                if task := self._tasks.get(id):
                    task.cancel()

    # --- made before ----------------------------------------------------------------------------------------------

    async def stored(self, id: str, who: Caller, *, stream: bool = False) -> Json:
        if stream:
            raise invalid("a response that was made before has no stream", "stream")
        stored = await self._shared.get(who.key, id)
        if stored is None:
            raise no_response(id)
        return stored.response

    async def cancel(self, id: str, who: Caller) -> Json:
        """Cancels a background response; a response that has ended is left as it is."""
        if not (await self.stored(id, who))["background"]:
            raise invalid("only a response in the background can be cancelled")
        cancelled = await self._shared.cancel(who.key, id)
        if cancelled is None:
            raise no_response(id)
        return cancelled

    async def delete(self, id: str, who: Caller) -> Json:
        """Deletes a response; a response under way is cancelled. If the request is sent again, a response that is
        missing was deleted by the replica that has ended."""
        if not await self._shared.delete(who.key, id) and not who.course.origin.again:
            raise no_response(id)
        return {"id": id, "object": "response", "deleted": True}
