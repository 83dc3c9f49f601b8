"""Closing the server: its proxies take no further requests, and those under way end."""

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress

import aiohttp

from cluster.serving.front import CLOSING, READY

LOOK_EVERY_S = 0.2


async def close(url: str, token: str, within_s: float, say: Callable[[str], None] = lambda text: None) -> int:
    """Closes the front at `url`. Returns how many requests are still under way: 0, unless they take longer than
    `within_s`. A front that can't be reached, as before the server has started, has none."""
    deadline = time.monotonic() + within_s
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(5)) as session:
        try:
            under_way = await _under_way(session, "POST", url)
        except (aiohttp.ClientError, TimeoutError):
            return 0
        if under_way:
            say(f"{under_way} requests are under way; they have {within_s:g} s to end (ctrl-c cuts them off)")
        while under_way and time.monotonic() < deadline:
            await asyncio.sleep(LOOK_EVERY_S)
            with suppress(aiohttp.ClientError, TimeoutError):  # a busy front has them still; one that died is replaced
                under_way = await _under_way(session, "GET", url)
    return under_way


async def is_ready(url: str) -> bool:
    """Whether the front at `url` tells its clients that the server is ready. One that can't be reached tells nobody."""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(5)) as session,
            session.get(f"{url}{READY}") as answer,
        ):
            return answer.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False


async def _under_way(session: aiohttp.ClientSession, method: str, url: str) -> int:
    async with session.request(method, f"{url}{CLOSING}") as answer:
        answer.raise_for_status()
        return int((await answer.json())["under_way"])
