"""Servers on loopback that behave as a test needs them to."""

import asyncio
import gzip
import socket
import struct
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import abc, web

from tests.support.virtual_time import leap

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer = bytes | float | None
"""Of a raw server: bytes are sent, a number of seconds passes by a leap of the clock, None resets the connection."""


@asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """The base URL of a server whose every path is handled by `handler`."""
    app = web.Application(client_max_size=1 << 30)
    app.add_routes([web.route("*", "/{path:.*}", handler)])
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def pages_of(pages: Mapping[str, web.Response | str]) -> Handler:
    """A site of plain texts and prepared responses by path."""

    async def handler(request: web.Request) -> web.StreamResponse:
        page = pages.get(request.path)
        if page is None:
            raise web.HTTPNotFound
        return web.Response(text=page) if isinstance(page, str) else page

    return handler


@asynccontextmanager
async def raw(*connections: Sequence[Answer]) -> AsyncIterator[tuple[str, list[bytes]]]:
    """The base URL of a server that answers its first connection with `connections[0]`, and so on, the last one for
    all that follow; and the heads of the requests that came."""
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        try:
            for part in connections[min(len(heads), len(connections)) - 1]:
                match part:
                    case bytes():
                        writer.write(part)
                        await writer.drain()
                    case None:
                        writer.transport.abort()
                    case _:
                        leap(part)
                        await asyncio.sleep(0.001)  # those whose time is up go
        except ConnectionError:
            pass  # the client has had enough
        finally:
            writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", heads
    finally:
        server.close()


@asynccontextmanager
async def closed_port() -> AsyncIterator[str]:
    """The base URL of a port where nothing listens, and nobody else can."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


class Names(abc.AbstractResolver):
    """A resolver for tests: each look-up of a name gives its next (address, port), the last one for ever."""

    def __init__(self, names: Mapping[str, Sequence[tuple[str, int]]]) -> None:
        self._names = {name: list(answers) for name, answers in names.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int = 0, family: Any = 0) -> list[abc.ResolveResult]:
        self.asked.append(host)
        answers = self._names.get(host)
        if answers is None:
            raise OSError(None, "no such name")
        address, at = answers.pop(0) if len(answers) > 1 else answers[0]
        return [abc.ResolveResult(hostname=host, host=address, port=at, family=family, proto=0, flags=0)]

    async def close(self) -> None: ...


def response(status: str = "200 OK", body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    """A whole response on a connection that is closed after it."""
    lines = [f"HTTP/1.1 {status}", "Connection: close", *headers]
    lines.append(f"Content-Length: {len(body) if length is None else length}")
    return "\r\n".join((*lines, "", "")).encode() + body


def gzip_of_zeros(mebibytes: int) -> bytes:
    """A thousandth of its content: one mebibyte is packed so that it can stand behind itself, and does."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
    block = packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH)
    checksum = 0
    for _ in range(mebibytes):
        checksum = zlib.crc32(bytes(1 << 20), checksum)
    head, end = gzip.compress(b"")[:10], b"\x03\x00"
    return head + block * mebibytes + end + struct.pack("<II", checksum, (mebibytes << 20) & 0xFFFFFFFF)
