"""The web site of a world, whose process may die: tools know one URL."""

import asyncio
import os
import time
from contextlib import suppress
from typing import Any

import aiohttp
import psutil
import pytest

from actors.tools.site import Site
from coa.errors import ToolDown
from coa.tasks.worlds import WebSite

PAGES = {"p1": "Vexon Labs : owner Ruiz"}


async def page(url: str) -> str:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/p1") as response:
        return await response.text()


def test_a_site_that_takes_the_place_of_another_serves_at_its_url() -> None:
    async def main() -> None:
        first = Site(PAGES, {})
        url = await first.start()
        held = asyncio.ensure_future(first.hold(url))
        assert await page(url) == PAGES["p1"], "it serves there already"
        held.cancel()
        await first.stop()
        second = Site(PAGES, {})
        held = asyncio.ensure_future(second.hold(url))
        for _ in range(1000):
            await asyncio.sleep(0.01)
            if second._runner is not None and second._runner.addresses:
                break
        assert await page(url) == PAGES["p1"]
        held.cancel()
        await second.stop()

    asyncio.run(main())


@pytest.mark.slow
def test_a_site_whose_process_is_killed_is_back_at_its_url(ray_session: None) -> None:
    import ray

    from jobs.stages.services import make_site

    large = {"p2": "x" * 1_000_000}
    hits = {f"query {n}": [{"title": "t" * 1000}] for n in range(1000)}
    site: Any = make_site(WebSite(pages=PAGES | large, hits=hits))
    url: Any = ray.get(site.start.remote())
    site.hold.remote(url)
    assert asyncio.run(page(url)) == PAGES["p1"]
    for _ in range(2):
        process = psutil.Process(ray.get(site.__ray_call__.remote(lambda self: os.getpid())))
        ray.kill(site, no_restart=False)
        process.wait(30)
        until, found = time.monotonic() + 60, ""
        while not found and time.monotonic() < until:
            with suppress(aiohttp.ClientError):
                found = asyncio.run(page(url))
            time.sleep(0.2)
        assert found == PAGES["p1"]
    ray.kill(site)


def test_a_site_whose_port_is_taken_says_so_and_serves_once_it_is_free() -> None:
    async def main() -> None:
        other = Site(PAGES, {})
        url = await other.start()
        site = Site(PAGES, {})
        held = asyncio.ensure_future(site.hold(url))
        await asyncio.sleep(0.1)
        with pytest.raises(ToolDown, match=r"port \d+: Address already in use"):
            await site.check()
        await other.stop()
        for _ in range(100):
            await asyncio.sleep(0.05)
            if site._runner:
                break
        await site.check()
        assert await page(url) == PAGES["p1"]
        held.cancel()
        await site.stop()

    asyncio.run(main())
