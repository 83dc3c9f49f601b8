"""A small web site with a search service, over real HTTP: where web tools lead in a closed world."""

from collections.abc import Mapping, Sequence

from aiohttp import web

from coa.tools.wiki import normalise

Hit = Mapping[str, str]
"""title, link (a page's id), snippet."""


class Site:
    """POST /search answers in Serper's shape; GET /PAGE_ID is the page's text. Loopback only, unless told otherwise.

    site = Site(pages={"p1": "Vexon Labs owner Diaz"}, hits={"vexon labs": [{"title": ..., "link": "p1", ...}]})
    base_url = await site.start()
    """

    def __init__(
        self, pages: Mapping[str, str], hits: Mapping[str, Sequence[Hit]], host: str = "127.0.0.1", port: int = 0
    ) -> None:
        """`hits`: query to results, best first; case and spacing of a query are forgiven."""
        self._pages = dict(pages)
        self._hits = {normalise(query): list(found) for query, found in hits.items()}
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None

    async def start(self) -> str:
        """Serves until `stop`; returns the base URL."""
        app = web.Application()
        app.add_routes([web.post("/search", self._search), web.get("/{page:.+}", self._page)])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._host, self._port).start()
        return f"http://{self._host}:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def _search(self, request: web.Request) -> web.Response:
        body = await request.json()
        found = self._hits.get(normalise(body["q"]), [])[: body.get("num", 10)]
        return web.json_response({"organic": [{**hit, "position": n} for n, hit in enumerate(found, start=1)]})

    async def _page(self, request: web.Request) -> web.Response:
        text = self._pages.get(request.match_info["page"])
        if text is None:
            raise web.HTTPNotFound
        return web.Response(text=text)
