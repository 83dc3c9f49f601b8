"""Answers a request although a replica may end during it (`coa.serving.resumption`): one that no byte of an answer has
left yet is sent to another replica, and a stream goes on at another one."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from coa.serving.faults import ApiError
from coa.serving.resumption import HEADER, Passage, broken_off, new_origin
from coa.serving.retelling import Diverged

RESUMED = "/v1/"
"""Beginning of the paths whose requests may be sent again."""
FRUITLESS = 3
"""Number of attempts in a row that got no further, after which a request fails: it may be what ends the replicas."""
PAUSE_S = 1.0
"""Seconds before the next attempt, until which Ray Serve has seen that the replica is gone."""
PAUSED = b": the engine has ended, and another one goes on\n\n"
"""Comment that a client gets meanwhile."""
LOST = ApiError(502, "engine_lost", "the engine ended during this request")


async def answer(app: ASGIApp, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
    """Has the application answer a request whose body has been read."""
    origin, passage, left = new_origin(noted=True), Passage(), asyncio.Event()
    resumed = scope["path"].startswith(RESUMED)

    async def received() -> Message:
        message = await receive()
        if message["type"] == "http.disconnect":
            left.set()
        return message

    delivery, fruitless, again = Delivery(scope["path"], passage, send), 0, False
    while True:
        known = len(passage.record)
        header = replace(origin, record=tuple(passage.record), again=again).header()
        headers = [*scope["headers"], *([(HEADER.encode(), header.encode())] if resumed else [])]
        await app({**scope, "headers": headers}, _replayed(body, received), delivery.take)
        if delivery.ended or left.is_set():
            return
        fruitless = 1 if len(passage.record) > known else fruitless + 1
        if not (resumed and delivery.may_go_on) or fruitless == FRUITLESS:
            return await delivery.fail(LOST)
        again = True
        await delivery.pause()
        await asyncio.sleep(PAUSE_S)


class Delivery:
    """The response that the client gets, over all attempts."""

    def __init__(self, path: str, passage: Passage, send: Send) -> None:
        self._path, self._passage, self._send = path, passage, send
        self._streams = self._started = False
        self.ended = False

    @property
    def may_go_on(self) -> bool:
        """Whether another replica can give what the client lacks."""
        return not self._started or (self._streams and self._passage.resumable)

    async def take(self, message: Message) -> None:
        """Takes the message of a replica, and sends what the client lacks of it."""
        if self.ended:
            return
        match message:
            case {"type": "http.response.start"} if not self._started:
                kind = dict(message["headers"]).get(b"content-type", b"")
                self._started, self._streams = True, kind.startswith(b"text/event-stream")
                await self._send(message)
            case {"type": "http.response.start"}:
                if message["status"] != 200:
                    await self.fail(LOST)
            case {"type": "http.response.body"}:
                await self._pass_on(message)
            case _:
                await self._send(message)

    async def _pass_on(self, message: Message) -> None:
        if self._streams and (body := message.get("body", b"")):
            try:
                message = {**message, "body": self._passage.take(body)}
            except Diverged:
                return await self.fail(LOST)
        self.ended = not message.get("more_body", False)
        if self.ended or message.get("body"):
            await self._send(message)

    async def pause(self) -> None:
        self._passage.begin_again()
        if self._started:
            await self._send({"type": "http.response.body", "body": PAUSED, "more_body": True})

    async def fail(self, error: ApiError) -> None:
        """Ends the answer with an error. One that has begun is cut off by not ending it, unless it is a stream of a
        protocol that has events for errors."""
        if self._started and not (self._streams and self._path.startswith(RESUMED)):
            return
        self.ended = True
        if self._started:
            body = broken_off(self._path, error, self._passage.sequence)
            await self._send({"type": "http.response.body", "body": body})
        else:
            await refuse(self._send, self._path, error)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """A `receive` that begins with the body."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


async def refuse(send: Send, path: str, error: ApiError) -> None:
    body = json.dumps(error.body(path)).encode()
    await respond(send, error.status, body, "application/json", {**error.headers(), "Connection": "close"})


async def respond(send: Send, status: int, body: bytes, kind: str, more: Mapping[str, str] | None = None) -> None:
    headers = {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}
    encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})
