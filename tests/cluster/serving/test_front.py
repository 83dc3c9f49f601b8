"""The front of the server, before a uvicorn server on real sockets, with an application that counts what reaches it."""

import asyncio
import functools
import json
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import uvicorn
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse

import cluster.serving.front as front
from cluster.serving.front import CLOSING, Front, GuardedProtocol, middlewares_of
from coa.serving.config import ServingConfig
from coa.serving.front import SEND_BYTES, front_in, front_of, variables
from coa.serving.keys import KeyFile
from coa.serving.limits.quotas import Quota
from tests.support.patience import PATIENCE_S, until
from tests.support.virtual_time import leap, leaping

TOKEN = "of-the-owner"
OWNER = {"Authorization": f"Bearer {TOKEN}"}
MANY = 300
LIMIT_S = 3600.0


class Behind:
    """The application behind the front."""

    def __init__(self) -> None:
        self.came: list[dict[str, Any]] = []
        self.given = 0
        """Bytes of a flood that were taken."""
        self.go_on = asyncio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        body = await request.body()
        self.came.append({"path": scope["path"], "body": body, "headers": dict(request.headers)})
        if scope["path"] == "/stream":
            await StreamingResponse(self._pieces())(scope, receive, send)
        elif scope["path"] == "/flood":
            await StreamingResponse(self._flood())(scope, receive, send)
        else:
            await JSONResponse({"bytes": len(body)})(scope, receive, send)

    async def _flood(self) -> AsyncIterator[bytes]:
        for _ in range(8000):
            yield b"x" * 8192
            self.given += 8192

    async def _pieces(self) -> AsyncIterator[bytes]:
        yield b"begun "
        await self.go_on.wait()
        yield b"ended"


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(GuardedProtocol, "open", Counter())
    yield
    assert not GuardedProtocol.open, "every connection is counted to its end"


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a leap of the clock ends what is late."""
    for name in ("HEAD_S", "UNREAD_S"):
        monkeypatch.setattr(front, name, LIMIT_S)
    monkeypatch.setattr("coa.serving.front.BODY_S", LIMIT_S)


@asynccontextmanager
async def served(**config: Any) -> AsyncIterator[tuple[Behind, httpx.AsyncClient, int]]:
    behind = Behind()
    app: Any = behind
    for one in middlewares_of(replace(front_of(ServingConfig(), TOKEN), **config)):
        app = one.cls(app, *one.args, **one.kwargs)
    # As Ray Serve makes it.
    server = uvicorn.Server(uvicorn.Config(lambda: app, factory=True, lifespan="off", log_level="critical"))
    with socket.create_server(("127.0.0.1", 0), backlog=2 * MANY) as listener:
        serving = asyncio.ensure_future(server.serve([listener]))
        port = listener.getsockname()[1]
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_S) as client:
            yield behind, client, port
        server.should_exit = True
        await serving


async def sent(port: int, data: bytes, receive: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """receive: bytes that the client's system holds for it, if it is not to choose."""
    client = socket.socket()
    if receive:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
    client.connect(("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=client, limit=1024 if receive else 2**16)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What still comes until the server ends the connection."""
    async with asyncio.timeout(PATIENCE_S):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        leaping(test(*args, **named))

    return run


HALF = b"POST /v1/responses HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n{"


@in_loop
async def test_half_sent_bodies_reach_nothing_are_answered_in_time_and_delay_nobody() -> None:
    async with served() as (behind, client, port):
        half = [await sent(port, HALF) for _ in range(MANY)]
        assert (await client.post("/v1/responses", content=b"{}")).json() == {"bytes": 2}
        assert (await client.get("/healthz")).text == "ok\n"
        assert GuardedProtocol.open["127.0.0.1"] == MANY + 1, "they are all still there"
        leap(LIMIT_S)
        answers = await asyncio.gather(*(rest(reader) for reader, _ in half))
        assert {answer.splitlines()[0] for answer in answers} == {b"HTTP/1.1 408 Request Timeout"}
        assert [one["path"] for one in behind.came] == ["/v1/responses"]
        for _, writer in half:
            writer.close()


@in_loop
async def test_a_slow_body_that_keeps_its_rate_arrives_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.serving.front.BODY_RATE", 65536 / LIMIT_S)
    async with served() as (behind, _, port):
        head = b"POST /v1/x HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 327680\r\n\r\n"
        reader, writer = await sent(port, head)
        for _ in range(5):  # longer than a body without bytes may take
            writer.write(b"y" * 65536)
            await asyncio.sleep(0.01)
            leap(LIMIT_S / 2)
        assert b'{"bytes":327680}' in await rest(reader)
        assert len(behind.came[0]["body"]) == 327680
        writer.close()


@pytest.mark.parametrize(
    "begun", [b"", b"P", b"POST /v1/x HTTP/1.1\r\nHost: a\r\nX-Long: "], ids=["none", "one", "half"]
)
@in_loop
async def test_a_head_that_does_not_end_ends_the_connection(begun: bytes) -> None:
    async with served() as (behind, _, port):
        reader, writer = await sent(port, begun)
        await until(lambda: GuardedProtocol.open)
        leap(LIMIT_S)
        assert await rest(reader) == b""
        writer.close()
        # The same after a request on the same connection.
        reader, writer = await sent(port, b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n")
        await reader.readuntil(b"}")
        writer.write(begun or b"\r\n")
        await asyncio.sleep(0.01)
        leap(LIMIT_S)
        assert await rest(reader) == b""
        writer.close()
        assert len(behind.came) == 1


@in_loop
async def test_a_head_without_end_is_refused_by_its_size() -> None:
    async with served() as (behind, _, port):
        reader, writer = await sent(port, b"GET /a HTTP/1.1\r\n" + b"X-Long: " + b"a" * front.HEAD_BYTES)
        assert (await rest(reader)).startswith(b"HTTP/1.1 400 Bad Request")
        assert not behind.came
        writer.close()


@in_loop
async def test_an_unread_answer_ends_its_connection() -> None:
    async with served() as (behind, client, port):
        reader, writer = await sent(port, b"GET /flood HTTP/1.1\r\nHost: a\r\n\r\n", receive=4096)
        await reader.readexactly(100)
        given = 0
        while GuardedProtocol.open:
            given = behind.given
            leap(LIMIT_S)
            await asyncio.sleep(0.01)
        writer.close()
        assert 0 < given < 4 * SEND_BYTES, "nothing holds more of it"
        assert (await client.get("/a")).status_code == 200


@in_loop
async def test_connections_of_one_address_are_bounded() -> None:
    async with served(connections_per_address=3) as (_, client, port):
        held = [await sent(port, HALF) for _ in range(3)]
        with pytest.raises(httpx.TransportError):
            await client.get("/healthz")
        leap(LIMIT_S)
        for reader, writer in held:
            await rest(reader)
            writer.close()
        assert (await client.get("/healthz")).text == "ok\n"


@in_loop
async def test_a_key_is_checked_before_the_body_is_read(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.jsonl")
    key = keys.add("alice", Quota(), 0)
    async with served(keys=tmp_path / "keys.jsonl", max_bytes=1000) as (behind, client, port):
        for scheme in ("Bearer", "bearer"):
            bearer = {"Authorization": f"{scheme} {key}"}
            answer = await client.post("/v1/responses", content=b"{}", headers=bearer)
            assert answer.status_code == 200
        assert (await client.post("/v1/responses", content=b"{}", headers={"X-Api-Key": key})).status_code == 200
        refused: tuple[tuple[str, Any, str], ...] = (
            ("/v1/responses", {}, "missing_api_key"),
            ("/v1/responses", {"Authorization": f"Bearer {key}x"}, "invalid_api_key"),
            ("/v1/models", {"Authorization": "Basic YTpi"}, "invalid_api_key"),
            ("/mcp", httpx.Headers({"Authorization": "Bearer \u00fc"}, encoding="utf-8"), "invalid_api_key"),
        )
        for path, headers, code in refused:
            answer = await client.post(path, content=b"{}", headers=headers)
            assert (answer.status_code, answer.json()["error"]["code"]) == (401, code)
        assert (await client.post("/v1/messages", content=b"")).json()["error"]["type"] == "authentication_error"
        reader, writer = await sent(port, HALF)
        assert (await rest(reader)).startswith(b"HTTP/1.1 401 Unauthorized")
        writer.close()
        assert (await client.get("/metrics")).status_code == 200, "no key is asked for there"
        assert len(behind.came) == 4


@in_loop
async def test_bodies_that_are_too_large_are_refused_by_their_head_and_while_they_come() -> None:
    async with served(max_bytes=1000) as (behind, client, _):

        async def chunks() -> AsyncIterator[bytes]:
            for _ in range(11):
                yield b"a" * 100

        for content in (b"a" * 1001, chunks()):
            answer = await client.post("/v1/responses", content=content)
            assert (answer.status_code, answer.json()["error"]["code"]) == (413, "request_too_large")
        assert (await client.post("/v1/responses", content=b"a" * 1000)).json() == {"bytes": 1000}
        assert len(behind.came) == 1


@in_loop
async def test_headers_that_only_the_proxys_owner_may_send_are_left_out() -> None:
    async with served() as (behind, client, _):
        owners = ("X-Request-Timeout-Seconds", "X-Request-Disconnect-Disabled", "serve_multiplexed_model_id")
        names = (*owners, "Serve-Multiplexed-Model-Id", "X-Session-Id", "x_session_id")
        await client.get("/a", headers={**dict.fromkeys(names, "?1"), "X-Request-Id": "a-1", "X-Other": "b"})
        await client.get("/a", headers=cast(Any, {"X-Request-Id": "\u00fc".encode()}))
        first, second = (one["headers"] for one in behind.came)
        assert (first["x-request-id"], first["x-other"]) == ("a-1", "b")
        assert not {name.lower() for name in names} & first.keys()
        assert "x-request-id" not in second


@in_loop
async def test_a_request_for_a_websocket_is_answered_as_any_other() -> None:
    async with served() as (behind, client, _):
        upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
        answer = await client.get("/v1/models", headers={**upgrade, "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="})
        assert (answer.status_code, answer.json()) == (200, {"bytes": 0})
        assert len(behind.came) == 1


@in_loop
async def test_pages_of_named_origins_may_call_the_server_and_no_others(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys.jsonl")
    key = keys.add("alice", Quota(), 0)
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization,content-type"}
    async with served(keys=tmp_path / "keys.jsonl", cors_origins=("https://a.example",)) as (behind, client, _):
        for origin, status in (("https://a.example", 200), ("https://b.example", 400)):
            answer = await client.options("/v1/responses", headers={"Origin": origin, **asked})
            assert (answer.status_code, answer.headers.get("access-control-allow-origin") == origin) == (
                status,
                status == 200,
            )
        assert not behind.came, "a preflight has no key, and takes no place"
        allowed = {"Origin": "https://a.example"}
        for headers, status in ((allowed, 401), ({**allowed, "Authorization": f"Bearer {key}"}, 200)):
            answer = await client.post("/v1/responses", content=b"{}", headers=headers)
            assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (status, "https://a.example")
    async with served() as (behind, client, _):
        answer = await client.options("/v1/responses", headers={"Origin": "https://a.example", **asked})
        assert "access-control-allow-origin" not in answer.headers


@in_loop
async def test_a_closed_front_lets_requests_end_and_takes_no_others() -> None:
    async with served() as (behind, client, _):
        async with client.stream("GET", "/stream") as stream:
            pieces = stream.aiter_text()
            assert await anext(pieces) == "begun "
            assert (await client.get(CLOSING, headers=OWNER)).json() == {"closed": False, "under_way": 1}
            assert (await client.post(CLOSING)).status_code == 401
            assert (await client.post(CLOSING, headers=OWNER)).json() == {"closed": True, "under_way": 1}
            refused = await client.post("/v1/responses", content=b"{}")
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
            assert refused.headers["connection"] == "close"
            assert (await client.get("/healthz")).status_code == 200
            behind.go_on.set()
            assert "".join([piece async for piece in pieces]) == "ended"
        assert (await client.get(CLOSING, headers=OWNER)).json() == {"closed": True, "under_way": 0}


@in_loop
async def test_nobody_closes_a_front_without_an_owner() -> None:
    behind = Behind()
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "method": "POST", "path": CLOSING, "headers": [(b"authorization", b"Bearer ")]}
    await Front(behind, config=front_of(ServingConfig()))(scope, receive, send)
    assert json.loads(sent[-1]["body"]) == {"bytes": 0}, "it goes on as any other path"


def test_a_front_has_the_settings_of_its_servers_environment_or_the_default_ones(tmp_path: Path) -> None:
    config = front_of(
        ServingConfig(keys=tmp_path / "größe", max_request_mib=0.5, connections_per_address=7, cors_origins=("*",)), "a"
    )
    assert front_in(variables(config)) == config
    assert front_in({}) == front_of(ServingConfig())
    assert config.max_bytes == 2**19
