"""The front sends a request again whose replica has ended, and lets streams go on; with applications that break off."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from cluster.serving import resuming
from cluster.serving.resuming import FRUITLESS, PAUSED, answer
from coa.serving.resumption import HEADER, Heard, note_of

App = Callable[[int, list[Any], Callable[[bytes], Awaitable[None]]], Awaitable[bool]]
"""Takes the number of the attempt, its record and what sends a piece; returns whether the answer is whole."""
BODY = b'{"model": "afm"}'


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resuming, "PAUSE_S", 0.0)


class Client:
    """Sends one request through the front, and keeps what it gets."""

    def __init__(self, app: App, path: str = "/v1/responses", kind: str = "text/event-stream; charset=utf-8") -> None:
        self.app, self.path, self.kind = app, path, kind
        self.attempts: list[list[Any]] = []
        self.bodies: list[bytes] = []
        self.messages: list[dict[str, Any]] = []
        self.leaves = asyncio.Event()

    async def _application(self, scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        self.attempts.append(json.loads(headers[HEADER.encode()]) if HEADER.encode() in headers else [])
        self.bodies.append((await receive())["body"])
        started = False

        async def say(piece: bytes) -> None:
            nonlocal started
            if not started:
                kind = [(b"content-type", self.kind.encode())]
                await send({"type": "http.response.start", "status": 200, "headers": kind})
                started = True
            await send({"type": "http.response.body", "body": piece, "more_body": True})

        if await self.app(len(self.attempts), self.attempts[-1][3:], say):
            await send({"type": "http.response.body", "body": b""})
        elif self.leaves.is_set():
            assert (await receive())["type"] == "http.disconnect"

    def ask(self) -> str:
        async def receive() -> Any:
            await self.leaves.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            self.messages.append(message)

        scope = {"type": "http", "path": self.path, "headers": []}
        asyncio.run(answer(self._application, scope, BODY, receive, send))
        return b"".join(message.get("body", b"") for message in self.messages).decode()

    @property
    def status(self) -> int:
        return self.messages[0]["status"]

    @property
    def whole(self) -> bool:
        """Whether the answer was ended."""
        return self.messages[-1]["type"] == "http.response.body" and not self.messages[-1].get("more_body")


async def says(say: Callable[[bytes], Awaitable[None]], *pieces: str) -> None:
    for piece in pieces:
        await say(piece.encode())


def test_a_stream_goes_on_at_another_replica() -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        await says(say, "data: a\n\n")
        if attempt == 1:
            await says(say, note_of(Heard((7,))))
            return False
        assert record == [["heard", [7]]]
        await says(say, "data: b\n\n", note_of(Heard((8,))), "data: [DONE]\n\n")
        return True

    client = Client(app)
    assert client.ask() == f"data: a\n\n{PAUSED.decode()}data: b\n\ndata: [DONE]\n\n"
    assert (client.status, client.whole, client.bodies) == (200, True, [BODY] * 2)
    assert client.attempts[0][:2] == client.attempts[1][:2]
    assert [attempt[2] for attempt in client.attempts] == [False, True], "the key pays once"


def test_a_request_of_which_nothing_was_answered_is_sent_again() -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        if attempt == 1:
            return False
        await says(say, "{}")
        return True

    client = Client(app, "/v1/chat/completions", "application/json")
    assert client.ask() == "{}"
    assert len(client.attempts) == 2


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/v1/responses", 'event: error\ndata: {"type": "error", "code": "engine_lost"'),
        ("/v1/messages", 'event: error\ndata: {"type": "error", "error": {"type": "api_error"'),
        ("/v1/chat/completions", 'data: {"error": {"message": "the engine ended during this request"'),
    ],
)
def test_a_stream_that_can_not_go_on_ends_with_the_protocols_error(path: str, expected: str) -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        await says(say, f'data: {{"delta": "of {attempt}"}}\n\n')
        return attempt > 1

    client = Client(app, path)
    told = client.ask()
    assert told.startswith('data: {"delta": "of 1"}\n\n' + PAUSED.decode() + expected)
    assert client.whole
    assert len(client.attempts) == 2


def test_a_stream_without_notes_is_made_anew() -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        await says(say, 'data: {"delta":"The ma"}\n\n' if attempt == 1 else 'data: {"delta":"The mayor"}\n\n')
        return attempt > 1

    client = Client(app)
    assert client.ask() == f'data: {{"delta":"The ma"}}\n\n{PAUSED.decode()}data: {{"delta":"yor"}}\n\n'
    assert client.whole


def test_a_request_that_ends_each_replica_is_given_up() -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        return False

    client = Client(app)
    told = json.loads(client.ask())
    assert (client.status, told["error"]["code"]) == (502, "engine_lost")
    assert len(client.attempts) == FRUITLESS


def test_as_long_as_a_stream_gets_further_it_goes_on() -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        await says(say, *(f"data: {n}\n\n" for n in range(len(record))))
        if len(record) == 3 * FRUITLESS:
            return True
        await says(say, note_of(Heard((attempt,))))
        return False

    client = Client(app)
    expected = "".join(f"data: {n}\n\n" for n in range(3 * FRUITLESS))
    assert client.ask().replace(PAUSED.decode(), "") == expected


def test_a_replica_that_continues_differently_ends_the_stream_with_an_error() -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        await says(say, note_of(Heard((1,))), f"data: {attempt}\n\n")
        return attempt > 1

    client = Client(app)
    told = client.ask()
    assert told.startswith(f"data: 1\n\n{PAUSED.decode()}event: error\n")
    assert "data: 2" not in told


def test_a_client_that_has_left_is_not_answered_again() -> None:
    client = Client(lambda attempt, record, say: leave())

    async def leave() -> bool:
        client.leaves.set()
        return False

    client.ask()
    assert len(client.attempts) == 1


@pytest.mark.parametrize(
    ("path", "kind", "pieces", "attempts"),
    [
        ("/v1/responses", "application/json", ["{"], 1),
        ("/mcp", "text/event-stream", ["data: 1\n\n"], 1),
        ("/", "text/html", [], 1),
    ],
)
def test_what_can_not_go_on_and_has_no_event_for_errors_is_cut_off(
    path: str, kind: str, pieces: list[str], attempts: int
) -> None:
    async def app(attempt: int, record: list[Any], say: Any) -> bool:
        await says(say, *pieces)
        return False

    client = Client(app, path, kind)
    client.ask()
    assert len(client.attempts) == attempts
    assert client.whole == (not pieces), "an answer that has not begun is an error"
