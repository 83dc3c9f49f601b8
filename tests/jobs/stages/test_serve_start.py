"""An interrupt while a server starts: before clients know of the server, and after."""

import asyncio
import threading
from collections.abc import Awaitable, Callable

import pytest
from aiohttp import web

from cluster.serving.closing import is_ready
from jobs.stages.serve import started
from tests.support.patience import PATIENCE_S
from tests.support.ports import free_port
from tests.support.servers import serving


async def interrupted(ready: Callable[[], Awaitable[bool]]) -> bool:
    """What `started` returns where an interrupt comes while it waits for Ray."""
    begun, seen = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def start() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert seen.wait(PATIENCE_S)

    starting = asyncio.ensure_future(started(start, ready))
    try:
        await begun.wait()
        starting.cancel()
        return await starting
    finally:
        seen.set()


def saying(ready: bool) -> Callable[[], Awaitable[bool]]:
    async def answer() -> bool:
        return ready

    return answer


def test_a_server_that_clients_may_use_is_closed_by_an_interrupt_though_ray_still_looks() -> None:
    assert asyncio.run(interrupted(saying(True))) is False


def test_an_interrupt_of_a_server_that_no_client_may_use_yet_ends_its_start() -> None:
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(interrupted(saying(False)))


def test_a_server_goes_on_without_an_interrupt() -> None:
    assert asyncio.run(started(lambda: None, saying(False))) is True


@pytest.mark.parametrize(("status", "ready"), [(200, True), (503, False)])
def test_a_server_is_ready_when_its_clients_are_told_so(status: int, ready: bool) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(status=status if request.path == "/readyz" else 404)

    async def go() -> bool:
        async with serving(handler) as url:
            return await is_ready(url)

    assert asyncio.run(go()) is ready


def test_a_server_that_is_not_there_is_not_ready() -> None:
    assert asyncio.run(is_ready(f"http://127.0.0.1:{free_port()}")) is False
