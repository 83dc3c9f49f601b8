"""A server of a small web: a search service in Serper's protocol, and the pages that its hits lead to.

    python -m coa.tools.web.server --corpus pages.jsonl --port 8100 [language=...]

The corpus is JSONL of {"url": ..., "title": ..., "text": ...}, held in memory; BM25 finds pages
(`coa.tools.search.wiki`).

    POST /search {"q": "owner of Vexon Labs", "num": 5}
    200 {"organic": [{"title": "Vexon Labs", "link": "p1", "snippet": "...", "position": 1}]}
    GET /p1                        the text of the page whose url is p1
    GET /https://example.org/a     the same for a full address, so that this server can be a reader

With relative urls: tools.search.url=http://HOST:8100/search tools.crawl.site=http://HOST:8100
With full addresses: tools.search.url=http://HOST:8100/search tools.crawl.reader=http://HOST:8100/
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from aiohttp import web

from coa.config import load
from coa.errors import UserError
from coa.http.addresses import parsed
from coa.storage.texts import lines
from coa.tools.layouts import Passage
from coa.tools.search.corpus import as_passage
from coa.tools.search.wiki import MAX_QUERY_CHARS, WikiConfig, canonical, open_index
from coa.tools.web.summary import relevant

SNIPPET_CHARS = 200
MAX_HITS = 100

Hit = Mapping[str, str]
"""title, link, snippet."""
Find = Callable[[str, int], Awaitable[Sequence[Hit]]]
"""Finds hits for a query, best first, up to a limit."""
Read = Callable[[str], str | None]
"""The text of the page at an address (the path after the server's address); None if there is none."""


def make_app(find: Find, read: Read) -> web.Application:
    """The web application that answers searches and serves pages."""

    async def search(request: web.Request) -> web.Response:
        try:
            query, num = read_query(await request.read())
        except (ValueError, RecursionError) as error:
            return web.json_response({"message": str(error)}, status=400)
        hits = await find(query, num)
        return web.json_response({"organic": [{**hit, "position": n} for n, hit in enumerate(hits, start=1)]})

    async def page(request: web.Request) -> web.Response:
        text = read(request.raw_path.removeprefix("/"))
        if text is None:
            raise web.HTTPNotFound
        return web.Response(text=text)

    app = web.Application()
    app.add_routes([web.post("/search", search), web.get("/{page:.+}", page)])
    return app


def read_query(data: bytes) -> tuple[str, int]:
    """Query and number of hits; raises ValueError or RecursionError for a malformed request."""
    match json.loads(data):
        case {"q": str(query), **others} if query.strip() and type(num := others.get("num", 10)) is int and num > 0:
            return query, min(num, MAX_HITS)
    raise ValueError("expected {q: a query, num: how many}")


class PagesOfCorpus:
    """The pages of a file, found by address and by search. The index is built the first time."""

    def __init__(self, path: Path, overrides: Sequence[str] = ()) -> None:
        """overrides: settings of `WikiConfig`. Raises UserError for a bad file."""
        self._pages: dict[str, Passage] = {}
        self._links: dict[tuple[str, str], str] = {}
        for link, page in _read_pages(path):
            self._pages[_same(link)] = page
            self._links.setdefault((page.title, page.text), link)
        self._index = open_index(load(WikiConfig, overrides=[f"corpus={json.dumps(str(path))}", *overrides]))

    def read(self, address: str) -> str | None:
        page = self._pages.get(_same(address))
        return f"{page.title}\n{page.text}" if page is not None else None

    async def find(self, query: str, num: int) -> list[Hit]:
        return await asyncio.to_thread(self._find, canonical(query[:MAX_QUERY_CHARS]), num)

    def _find(self, query: str, num: int) -> list[Hit]:
        return [
            {
                "title": page.title,
                "link": self._links[page.title, page.text],
                "snippet": relevant(page.text, query, SNIPPET_CHARS),
            }
            for page in self._index.search(query, num)
        ]


def _read_pages(path: Path) -> list[tuple[str, Passage]]:
    name = f"corpus {path}"
    return [_read_page(f"{name}, line {n}", line) for n, line in enumerate(lines(path, name), start=1) if line.strip()]


def _read_page(where: str, line: str) -> tuple[str, Passage]:
    try:
        row = json.loads(line)
        page = as_passage(row)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: {error}") from error
    if not isinstance(row.get("url"), str) or not row["url"]:
        raise UserError(f"{where}: no `url`")
    return row["url"], page


def _same(address: str) -> str:
    """The canonical form of an address: the same with and without percent encoding, and without its fragment."""
    try:
        return str(parsed(address).with_fragment(None))
    except ValueError:
        return address


def main(arguments: Sequence[str] | None = None) -> int:
    """Serves until it is interrupted; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m coa.tools.web.server", description="Serves a corpus of pages.")
    parser.add_argument("--corpus", required=True, type=Path, help="JSONL of url, title and text")
    parser.add_argument("--host", default="127.0.0.1", help="0.0.0.0 for every address of this machine (%(default)s)")
    parser.add_argument("--port", type=int, default=8100)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="of wiki, such as language=german")
    options = parser.parse_args(arguments)
    try:
        pages = PagesOfCorpus(options.corpus, options.settings)
        web.run_app(make_app(pages.find, pages.read), host=options.host, port=options.port)
    except (UserError, OSError, OverflowError) as error:  # but UserError: an address that can't be served at
        print(f"coa.tools.web.server: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
