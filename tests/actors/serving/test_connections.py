"""Clients that are slow, idle or gone, on real sockets: they cost the others nothing."""

import json
import resource
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import uvicorn

from actors.serving.app import make_app
from coa.agent.grammar import Span
from coa.errors import ToolDown
from coa.tools.base import ToolCall
from tests.actors.serving.test_server import MESSAGES
from tests.support.agent_server import make_server
from tests.support.patience import PATIENCE_S, soon
from tests.support.runners import Saying

IDLE = 1000
LONG = ((Span("wiki_search", "Arden"),), (Span("answer", "Berg " * 8000),))


@pytest.fixture
def address() -> Iterator[tuple[str, int]]:
    """Of a server whose answers are long."""

    async def answer(call: ToolCall) -> str | ToolDown:
        return "Arden " * 5000

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # of each connection: no answer fits into it
        listener.listen(2 * IDLE)
        config = uvicorn.Config(make_app(make_server(Saying(*LONG), answer)), log_level="error", timeout_keep_alive=60)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


def ask(address: tuple[str, int]) -> Any:
    body = {"model": "afm", "messages": MESSAGES}
    answer = httpx.post(f"http://127.0.0.1:{address[1]}/v1/chat/completions", json=body, timeout=PATIENCE_S)
    return answer.json()["choices"][0]["message"]["content"]


def begin_stream(address: tuple[str, int]) -> socket.socket:
    """A client that asks for a stream and has room for nearly nothing of it."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    client.connect(address)
    body = json.dumps({"model": "afm", "input": "Who ?", "stream": True}).encode()
    lines = ("POST /v1/responses HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json")
    head = "\r\n".join((*lines, f"Content-Length: {len(body)}", "", ""))
    client.sendall(head.encode() + body)
    assert client.recv(15) == b"HTTP/1.1 200 OK"
    return client


def under_way(address: tuple[str, int]) -> int:
    return httpx.get(f"http://127.0.0.1:{address[1]}/v1/load", timeout=PATIENCE_S).json()["episodes"]


def test_a_client_that_does_not_read_holds_up_no_other_and_leaves_nothing(address: tuple[str, int]) -> None:
    slow = [begin_stream(address) for _ in range(8)]
    assert ask(address).startswith("Berg Berg")
    assert under_way(address) == 8, "they wait for their reader"
    for client in slow:
        client.close()
    assert soon(lambda: not under_way(address))


def test_a_thousand_idle_connections_hold_up_nobody(address: tuple[str, int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 4 * IDLE)), hard))
    idle = [socket.create_connection(address) for _ in range(IDLE)]
    try:
        assert ask(address).startswith("Berg Berg")
    finally:
        for client in idle:
            client.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
