"""A small web site with a search service over real HTTP, for web tools without internet access."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from aiohttp import web

from actors.addresses import LOOPBACK
from coa.errors import ToolDown
from coa.tools.search.wiki import folded
from coa.tools.web.server import Hit, make_app

TRY_EVERY_S = 1.0
"""Seconds between two tries to serve at a port that another process has."""


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
        self._trouble = ""
        """Why it does not serve."""

    async def start(self) -> str:
        """Serves until `stop`; returns the base URL."""
        runner = web.AppRunner(make_app(self._find, self._read), access_log=None)
        await runner.setup()
        host = self._address()
        try:
            await web.TCPSite(runner, host, self._port).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        return f"http://{host}:{runner.addresses[0][1]}"

    async def hold(self, base_url: str) -> None:
        """Serves at that URL, which `start` returned, for as long as it lives. Ray repeats this call in the process
        that takes the place of one that died: the tools know no other URL. If another process has its port, it waits
        until that is free."""
        self._port = urlsplit(base_url).port or 0
        while self._runner is None:
            try:
                await self.start()
            except OSError as error:
                self._trouble = f"port {self._port}: {os.strerror(error.errno or 0)}"
                await asyncio.sleep(TRY_EVERY_S)
        await asyncio.Event().wait()

    async def check(self) -> None:
        """Raises ToolDown unless it serves."""
        if self._runner is None:
            raise ToolDown(self._trouble or "it is not started")

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _find(self, query: str, num: int) -> Sequence[Hit]:
        return self._hits.get(folded(query), [])[:num]

    def _read(self, address: str) -> str | None:
        return self._pages.get(unquote(address.partition("?")[0]))
