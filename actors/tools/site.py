"""A small web site with a search service over real HTTP, for web tools without internet access."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from aiohttp import web

from actors.addresses import LOOPBACK
from coa.tools.search.wiki import folded
from coa.tools.web.server import Hit, make_app


class Site:
    """Answers POST /search in Serper's protocol and GET /PAGE_ID with the page's text; on loopback by default.

    site = Site(pages={"p1": "Vexon Labs owner Diaz"}, hits={"vexon labs": [{"title": ..., "link": "p1", ...}]})
    base_url = await site.start()
    """

    def __init__(
        self,
        pages: Mapping[str, str],
        hits: Mapping[str, Sequence[Hit]],
        address: Callable[[], str] = lambda: LOOPBACK,
        port: int = 0,
    ) -> None:
        """hits: by query, best first; differences of case and spacing between queries do not count. address: called at
        the start; returns the address to serve at."""
        self._pages = dict(pages)
        self._hits = {folded(query): list(found) for query, found in hits.items()}
        self._address, self._port = address, port
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Serves until `stop`; returns the base URL."""
        self._runner = web.AppRunner(make_app(self._find, self._read), access_log=None)
        await self._runner.setup()
        host = self._address()
        await web.TCPSite(self._runner, host, self._port).start()
        return f"http://{host}:{self._runner.addresses[0][1]}"

    async def hold(self, base_url: str) -> None:
        """Serves at that URL, which `start` returned, for as long as it lives. Ray repeats this call in the process
        that takes the place of one that died: the tools know no other URL."""
        if self._runner is None:
            self._port = urlsplit(base_url).port or 0
            await self.start()
        await asyncio.Event().wait()

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _find(self, query: str, num: int) -> Sequence[Hit]:
        return self._hits.get(folded(query), [])[:num]

    def _read(self, address: str) -> str | None:
        return self._pages.get(unquote(address.partition("?")[0]))
