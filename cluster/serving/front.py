"""The server's front: what a request has to pass in Ray Serve's proxy before it takes a place at a replica.

connection ──► GuardedProtocol: connections per address, slow heads, unread answers
    └─► Front: health, closing, key, body ──► Ray Serve's proxy ──► replica

The proxy takes a replica's place for a request as soon as it has the request's head. Therefore the whole body is read
here first, within a time limit and after the key is known.
"""

import asyncio
import hmac
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import ClassVar

import uvicorn.protocols.http.auto
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cluster.serving.resuming import answer, refuse, respond
from coa.serving.faults import ApiError
from coa.serving.front import HEAD_BYTES, HEAD_S, HELD_BODIES, SEND_BYTES, UNREAD_S, FrontConfig, due_s, front_in
from coa.serving.keys import KeyFile, key_of

Header = tuple[bytes, bytes]

HEALTH, CLOSING, READY = "/healthz", "/-/close", "/readyz"
PROBES = ("/-/healthz", "/-/routes", READY)
"""Paths that are answered without a replica of the agent, also while the front is closed."""
NEEDS_KEY = re.compile(r"/(v1|mcp)(/|$)")
REQUEST_ID = re.compile(rb"[\w.:-]{1,128}", re.ASCII)
OURS = re.compile(
    rb"x-coa-origin|x-request-timeout-seconds|x-request-disconnect-disabled|serve[-_]multiplexed[-_]model[-_]id|x[-_]session[-_]id"
)
"""Headers that only the front and Ray Serve's proxy may set: a client could keep its request running after it has left,
choose its replica, or make up what an episode has done."""
REFUSED_S, REFUSED_BYTES = 1.0, 64 * 2**10
"""How much of the body of a refused request is read, since a client that still writes may miss the answer."""


def middlewares() -> list[Middleware]:
    """The middlewares of a proxy; Ray Serve calls this function by its name in `coa.serving.front.SERVE`."""
    return middlewares_of(front_in(os.environ))


def middlewares_of(config: FrontConfig) -> list[Middleware]:
    """The middlewares, the innermost first."""
    front = Middleware(Front, config=config)
    if not config.cors_origins:
        return [front]
    cors = {
        "allow_origins": config.cors_origins,
        "allow_methods": ("GET", "POST", "DELETE"),
        "allow_headers": ("*",),
        "expose_headers": ("Retry-After", "X-Request-Id"),
    }
    return [front, Middleware(CORSMiddleware, **cors)]


class GuardedProtocol(HttpToolsProtocol):
    """Uvicorn's HTTP protocol with limits of time and number, which uvicorn itself does not have."""

    per_address: ClassVar[int]
    open: ClassVar[Counter[str]] = Counter()
    """Number of open connections by address."""

    _address = ""
    _head: asyncio.TimerHandle | None = None
    _head_bytes: int | None = None
    """Bytes since the request's first; None between its head's end and the next request."""
    _unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._address = self.client[0] if self.client else ""
        self.open[self._address] += 1
        if self.open[self._address] > self.per_address:
            transport.abort()
            return
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BYTES)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.open[self._address] -= 1
        if not self.open[self._address]:
            del self.open[self._address]
        for timer in (self._head, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()  # also where no request begins, such as at an empty line
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._head is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        if self._head is not None:
            self._head.cancel()
        self._head = self._head_bytes = None
        super().on_headers_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self.loop.call_later(UNREAD_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _should_upgrade_to_ws(self) -> bool:
        """Nothing here speaks WebSocket: a request for it is answered as any other."""
        return False

    def timeout_keep_alive_handler(self) -> None:
        if self.transport.get_write_buffer_size():  # a transport that is closed waits until its buffer is read
            self.transport.abort()
        super().timeout_keep_alive_handler()

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head = self.loop.call_later(HEAD_S, self.transport.abort)


class Front:
    """ASGI middleware of Ray Serve's proxy."""

    def __init__(self, app: ASGIApp, *, config: FrontConfig) -> None:
        self._app, self._config = app, config
        self._keys = KeyFile(config.keys) if config.keys else None
        self._closed = False
        self._under_way = 0
        self._held = 0
        """Bytes of the bodies that are arriving."""
        GuardedProtocol.per_address = config.connections_per_address
        # Ray Serve makes its uvicorn server after its middlewares, and leaves uvicorn the choice of the protocol.
        uvicorn.protocols.http.auto.AutoHTTPProtocol = GuardedProtocol

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match scope["type"], scope.get("path"):
            case "http", path if path == HEALTH:
                await respond(send, 200, b"ok\n", "text/plain")
            case "http", path if path == CLOSING and self._config.token:
                await self._close(scope, send)
            case "http", path if path not in PROBES:
                await self._forward(scope, receive, send)
            case _:
                await self._app(scope, receive, send)

    async def _close(self, scope: Scope, send: Send) -> None:
        """Refuses further requests, and tells how many are still under way."""
        if not hmac.compare_digest(key_of(_headers(scope)).encode(), self._config.token.encode()):
            return await refuse(send, scope["path"], ApiError(401, "invalid_api_key", "no such key"))
        self._closed = self._closed or scope["method"] == "POST"
        state = {"closed": self._closed, "under_way": self._under_way}
        await respond(send, 200, json.dumps(state).encode(), "application/json")

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._under_way += 1
        try:
            try:
                self._check(scope)
            except ApiError:
                await _read_on(receive)
                raise
            body = await self._body(receive)
        except ApiError as error:
            return await refuse(send, scope["path"], error)
        else:
            if body is not None:
                await answer(self._app, {**scope, "headers": _own(scope["headers"])}, body, receive, send)
        finally:
            self._under_way -= 1

    def _check(self, scope: Scope) -> None:
        """Raises ApiError for a request that can be refused by its head."""
        if self._closed:
            raise ApiError(503, "shutting_down", "the server is shutting down", retry_after_s=5.0)
        headers = _headers(scope)
        if self._keys is not None and NEEDS_KEY.match(scope["path"]):
            self._keys.require(key_of(headers))
        said = headers.get("content-length", "")
        if said.isdigit() and int(said) > self._config.max_bytes:
            raise self._too_large()

    async def _body(self, receive: Receive) -> bytes | None:
        """The request's body; None if the client has left meanwhile."""
        parts: list[bytes] = []
        received, began = 0, asyncio.get_running_loop().time()
        try:
            while True:
                try:
                    async with asyncio.timeout_at(began + due_s(received)):
                        message = await receive()
                except TimeoutError as error:
                    raise ApiError(408, "too_slow", "the request's body did not arrive in time") from error
                if message["type"] == "http.disconnect":
                    return None
                part = message.get("body", b"")
                parts.append(part)
                received += len(part)
                self._held += len(part)
                if received > self._config.max_bytes:
                    raise self._too_large()
                if self._held > HELD_BODIES * self._config.max_bytes:
                    raise ApiError(503, "overloaded", "too many large requests at once", retry_after_s=1.0)
                if not message.get("more_body"):
                    return b"".join(parts)
        finally:
            self._held -= received

    def _too_large(self) -> ApiError:
        return ApiError(413, "request_too_large", f"a request has at most {self._config.max_bytes} bytes")


def _headers(scope: Scope) -> Mapping[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}


def _own(headers: Sequence[Header]) -> list[Header]:
    """Without those that only the proxy's owner may send, and without a request's id that can't be sent back."""
    return [
        (name, value)
        for name, value in headers
        if not OURS.fullmatch(name) and (name != b"x-request-id" or REQUEST_ID.fullmatch(value))
    ]


async def _read_on(receive: Receive) -> None:
    """Reads some of what a client still writes."""
    read = 0
    with suppress(TimeoutError):
        async with asyncio.timeout(REFUSED_S):
            while read < REFUSED_BYTES:
                message = await receive()
                if not message.get("more_body"):
                    return
                read += len(message["body"])
