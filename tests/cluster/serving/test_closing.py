"""A server of stubs on Ray Serve that is closed while it answers, and whose front is held up."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

import httpx
import psutil
import pytest
from starlette.requests import Request
from starlette.responses import StreamingResponse

from cluster.resources import PlacementConfig
from cluster.serving import deployment as serving
from cluster.serving.closing import close
from coa.serving.config import ServingConfig
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port

STREAMS, PIECES, PIECE_S = 50, 20, 0.1
TOKEN = "of-the-owner"


class Stub:
    """Streams for two seconds."""

    async def __call__(self, request: Request) -> StreamingResponse:
        return StreamingResponse(self._pieces())

    async def _pieces(self) -> AsyncIterator[bytes]:
        for number in range(PIECES):
            yield f"{number} ".encode()
            await asyncio.sleep(PIECE_S)

    async def version(self) -> int:
        return 7


@pytest.fixture
def url(no_ray: None) -> Iterator[str]:
    from ray import serve

    from cluster.session import SessionConfig, session

    port = free_port()
    with session(SessionConfig(cpus=2, object_store_gib=0.1)):
        config = ServingConfig(port=port)
        serving.run(serving.deployment(Stub, config, PlacementConfig(engine_cpus=0.1)).bind(), config, TOKEN)
        yield f"http://127.0.0.1:{port}"
        serve.shutdown()


async def closed(url: str, within_s: float) -> tuple[list[str], int, Any, list[str]]:
    """What streams that were open when the server was closed became; how many were left; the answer to a late request;
    and what was said."""
    said: list[str] = []
    async with httpx.AsyncClient(base_url=url, timeout=PATIENCE_S) as client:
        begun = asyncio.Semaphore(0)

        async def read() -> str:
            text = ""
            async with client.stream("GET", "/") as stream:
                async for piece in stream.aiter_text():
                    if not text:
                        begun.release()
                    text += piece
            return text

        reading = [asyncio.ensure_future(read()) for _ in range(STREAMS)]
        for _ in range(STREAMS):
            await begun.acquire()
        closing = asyncio.ensure_future(close(url, TOKEN, within_s, said.append))
        while not said:  # noqa: ASYNC110 - said by a callback
            await asyncio.sleep(0.01)
        late = await client.get("/")
        left = await closing
        return await asyncio.gather(*reading), left, late, said


@pytest.mark.slow
def test_open_streams_end_whole_when_the_server_closes_and_new_requests_get_503(url: str) -> None:
    texts, left, late, said = asyncio.run(closed(url, 30))
    assert texts == ["".join(f"{number} " for number in range(PIECES))] * STREAMS
    assert left == 0
    assert (late.status_code, late.json()["error"]["code"]) == (503, "shutting_down")
    assert said == [f"{STREAMS} requests are under way; they have 30 s to end (ctrl-c cuts them off)"]


@pytest.mark.slow
def test_a_deadline_ends_the_wait(url: str) -> None:
    _, left, _, _ = asyncio.run(closed(url, 0.1))
    assert left == STREAMS


@pytest.mark.slow
def test_a_proxy_that_dies_is_back_within_seconds_with_its_front(url: str) -> None:
    running = psutil.process_iter(["cmdline"])
    [proxy] = [one for one in running if (one.info["cmdline"] or ())[:1] == ["ray::ProxyActor"]]
    proxy.kill()
    began = time.monotonic()
    proxy.wait(10)
    while True:
        with suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", timeout=5).status_code == 200:
                break
        assert time.monotonic() - began < 60
        time.sleep(0.1)
    print(f"back after {time.monotonic() - began:.1f} s")
    assert time.monotonic() - began < 20
    assert asyncio.run(close(url, TOKEN, 1.0)) == 0
    assert httpx.get(url).status_code == 503, "it has the front of the one before"


def test_a_server_that_is_not_there_has_no_requests() -> None:
    assert asyncio.run(close(f"http://127.0.0.1:{free_port()}", TOKEN, 1.0)) == 0
