"""Clients that keep connections of a server without finishing what they began, in a process of their own.

    python -m tests.support.rude_clients PORT COUNT

COUNT connections of each kind in KINDS. One that the server ends is opened again. Writes a line with the open
connections of each kind as JSON every second.
"""

import asyncio
import itertools
import json
import random
import socket
import sys
from collections import Counter
from contextlib import suppress

PAUSE_S = 1.0
"""Between two bytes of a slow client."""
OPENED_AT_ONCE = 64
SPREAD_S = 10.0
"""Seconds over which they begin, so that the server does not end all of them at the same time."""
BODY = b'{"model": "demo:plain"}'
LARGE = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
"""What has an answer that is larger than what the systems of both sides hold."""


def head(length: int) -> bytes:
    lines = ("POST /v1/chat/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join((*lines, f"Content-Length: {length}", "", "")).encode()


async def half_sent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The head, and one byte of the body."""
    writer.write(head(len(BODY)) + BODY[:1])
    await reader.read()


async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The head, a byte at a time."""
    ended = asyncio.ensure_future(reader.read())
    for byte in head(len(BODY)):
        writer.write(bytes([byte]))
        await writer.drain()
        if (await asyncio.wait({ended}, timeout=PAUSE_S))[0]:
            break
    await ended


async def unread(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """A whole request with a large answer, of which the first byte alone is read."""
    writer.write(LARGE)
    await reader.read(1)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    while not writer.transport.is_closing():
        await asyncio.sleep(PAUSE_S)
        writer.write(b"\r\n")  # says whether the server has ended the connection


KINDS = {"half_sent": half_sent, "slow": slow, "unread": unread}


async def keep(port: int, name: str, opened: Counter[str], room: asyncio.Semaphore, after_s: float) -> None:
    """Keeps one connection from `after_s` on."""
    await asyncio.sleep(after_s)
    for _ in itertools.count():
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        with suppress(OSError):
            async with room:
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
            reader, writer = await asyncio.open_connection(sock=client, limit=256)
            opened[name] += 1
            try:
                await KINDS[name](reader, writer)
            finally:
                opened[name] -= 1
                writer.close()
        await asyncio.sleep(PAUSE_S)


async def main(port: int, count: int) -> None:
    opened, room, drawn = Counter(dict.fromkeys(KINDS, 0)), asyncio.Semaphore(OPENED_AT_ONCE), random.Random(0)
    kept = [
        asyncio.ensure_future(keep(port, name, opened, room, drawn.uniform(0, SPREAD_S)))
        for name in KINDS
        for _ in range(count)
    ]
    while not any(one.done() for one in kept):
        print(json.dumps(opened), flush=True)
        await asyncio.sleep(1)
    await asyncio.gather(*kept)


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
