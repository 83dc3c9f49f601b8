"""The web site of a world, whose process may die: tools know one URL."""

import asyncio
import time
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from actors.tools.site import Site
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

    site = make_site(WebSite(pages=PAGES, hits={}))
    url: Any = ray.get(site.start.remote())
    site.hold.remote(url)
    assert asyncio.run(page(url)) == PAGES["p1"]
    ray.kill(site, no_restart=False)
    until, found = time.monotonic() + 60, ""
    while not found and time.monotonic() < until:
        with suppress(aiohttp.ClientError):
            found = asyncio.run(page(url))
        time.sleep(0.2)
    assert found == PAGES["p1"]
    ray.kill(site)
