"""A stream whose replica ends at any moment goes on at another one, and the client reads what it would have read."""

import asyncio
import itertools
import re
from functools import cache
from typing import Any

import httpx
import pytest

from actors.serving.app import make_app
from coa.agent.grammar import Span
from coa.serving.resumption import HEADER, NOTE, Origin, Passage
from tests.support.agent_server import LOOP, make_server
from tests.support.runners import Saying

TURNS = (
    (Span("plan", "who is it"), Span("wiki_search", "mayor of Arden")),
    (Span("think", "so"), Span("answer", "Berg")),
)
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/responses": {"input": "Who ?", "store": False},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Who ?"}],
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {"prompt": "Who ?"},
    "/v1/messages": {"messages": [{"role": "user", "content": "Who ?"}], "max_tokens": 4096},
}
TIMES = re.compile(rb'"(completed_at|coa:seconds)":[\d.e-]+')
"""What may differ between two runs of the same request."""


@cache
def replica(number: int) -> Any:
    return make_app(make_server(Saying(*TURNS)))


def chunks_of(app: Any, path: str, origin: Origin, detail: str) -> list[bytes]:
    """A replica's whole stream, chunk by chunk."""
    found: list[bytes] = []
    body = {"model": "afm", "stream": True, **REQUESTS[path], "coa": {"detail": detail}}
    request = httpx.Request("POST", f"http://127.0.0.1{path}", json=body, headers={HEADER: origin.header()})

    bodies = [request.content]

    async def receive() -> dict[str, Any]:
        if not bodies:
            await asyncio.Event().wait()  # the client stays
        return {"type": "http.request", "body": bodies.pop(), "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            assert message["status"] == 200
        elif message.get("body"):
            found.append(message["body"])

    headers = [(name.lower(), value) for name, value in request.headers.raw]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b"", "root_path": ""}
    scope |= {"scheme": "http", "server": ("127.0.0.1", 80), "http_version": "1.1"}
    LOOP.run(app(scope, receive, send))
    return found


def passed(passage: Passage, chunks: list[bytes]) -> bytes:
    return b"".join(map(passage.take, chunks))


@pytest.mark.parametrize("detail", ["standard", "all"])
@pytest.mark.parametrize("path", REQUESTS)
def test_a_stream_that_is_cut_anywhere_goes_on_as_if_it_were_not(path: str, detail: str) -> None:
    origin = Origin("0" * 32, 1_700_000_000)
    first, second = replica(1), replica(2)
    whole = chunks_of(first, path, origin, detail)
    expected = passed(Passage(), whole)
    assert b"Berg" in expected
    assert NOTE.encode() not in expected
    for cut in range(len(whole)):
        passage = Passage()
        got = passed(passage, whole[:cut])
        passage.begin_again()
        rest = chunks_of(second, path, Origin(origin.name, origin.began, tuple(passage.record)), detail)
        got += passed(passage, rest)
        assert TIMES.sub(b"", got) == TIMES.sub(b"", expected), f"cut after {cut} of {len(whole)} chunks"


def test_a_turn_whose_stop_was_heard_has_ended() -> None:
    """Its engine died before it could say that the turn has ended, as while a tool runs: another one would look for the
    stop only in what it samples itself."""
    origin = Origin("2" * 32, 1_700_000_000)
    whole = [chunk.decode() for chunk in chunks_of(replica(1), "/v1/responses", origin, "all")]
    passage, until_said = Passage(), []
    for chunk in whole:
        notes, said, _ = chunk.partition(f'{NOTE}["said"')
        until_said.append(notes)
        if said:
            break
    for chunk in filter(None, until_said):
        passage.take(chunk.encode())
    policy = Saying(*TURNS)
    app = make_app(make_server(policy))
    rest = chunks_of(app, "/v1/responses", Origin(origin.name, origin.began, tuple(passage.record)), "all")
    assert len(policy.seeds) == 1, "only the second turn is asked for"
    assert b"Berg" in b"".join(rest)


def test_it_goes_on_again_and_again() -> None:
    origin, passage, got = Origin("1" * 32, 1_700_000_000), Passage(), b""
    app = replica(1)
    expected = passed(Passage(), chunks_of(app, "/v1/responses", origin, "all"))
    for _ in itertools.count():
        passage.begin_again()
        chunks = chunks_of(app, "/v1/responses", Origin(origin.name, origin.began, tuple(passage.record)), "all")
        more = 2  # chunks with anything new in them, before the next end
        for chunk in chunks:
            known = len(passage.record)
            new = passage.take(chunk)
            got += new
            more -= bool(new) or len(passage.record) > known
            if not more:
                break
        else:
            break
    assert TIMES.sub(b"", got) == TIMES.sub(b"", expected)
