"""Web search and page reading over HTTP.

The search service is Serper's shape (https://serper.dev): POST {base_url}/search {"q": ..., "num": ...} answers
{"organic": [{"title", "link", "snippet", "position"}, ...]}. Pages are read from the same site, and from the hosts
that the configuration allows.
"""

import json
from collections.abc import Mapping
from html.parser import HTMLParser
from urllib.parse import urljoin

from yarl import URL

from coa.errors import ToolDown
from coa.tools.http import Http
from coa.tools.wiki import NO_RESULT

REDIRECTS = 3


class WebSearch:
    cacheable = True

    def __init__(self, http: Http, base_url: str, headers: Mapping[str, str] | None = None) -> None:
        """`headers`: sent with each search, such as {"X-API-KEY": key}; never to a crawled page."""
        self._http = http
        self._url = f"{base_url.rstrip('/')}/search"
        self._headers = headers

    async def __call__(self, argument: str) -> str:
        body = {"q": argument, "num": self._http.config.hits}
        reply = await self._http.post(self._url, body, self._headers)
        if reply.status == 400:  # the service dislikes the query, such as an empty one: the policy's doing
            return NO_RESULT
        if reply.status != 200:
            raise ToolDown(f"{self._url}: status {reply.status}")
        try:
            return render_hits(reply.text, self._http.config.hits)[: self._http.config.max_chars]
        except (ValueError, TypeError, AttributeError) as error:
            raise ToolDown(f"{self._url}: not a search result: {reply.text[:80]!r}") from error

    async def close(self) -> None:
        await self._http.close()


def render_hits(text: str, limit: int) -> str:
    """A line per hit, `title link snippet`; raises ValueError, TypeError or AttributeError if it is no result."""
    hits = json.loads(text).get("organic", [])
    lines = (" ".join(f"{hit.get('title', '')} {hit['link']} {hit.get('snippet', '')}".split()) for hit in hits[:limit])
    return "\n".join(lines) or NO_RESULT


class CrawlPage:
    cacheable = True

    def __init__(self, http: Http, base_url: str) -> None:
        self._http = http
        self._base_url = f"{base_url.rstrip('/')}/"

    async def __call__(self, argument: str) -> str:
        """The page's text; `argument` is an address, or a link relative to the search site."""
        url = self._base_url
        link = argument
        for _ in range(1 + REDIRECTS):
            joined = self._allowed(url, link)
            if joined is None:
                return f"refused: {link[:200]} is not an address that may be read"
            url = joined
            reply = await self._http.get(url)
            if not (300 <= reply.status < 400 and reply.location):
                return self._show(reply.status, reply.content_type, reply.text)
            link = reply.location
        return "too many redirects"

    async def close(self) -> None:
        await self._http.close()

    def _allowed(self, base: str, link: str) -> str | None:
        """The absolute address, or None. Checked for each redirect too: a page may not lead into an inner network."""
        try:
            url = URL(urljoin(base, link.strip()))
            site = URL(self._base_url)
            at_site = (url.host, url.port) == (site.host, site.port)
        except ValueError:
            return None
        # Elsewhere only the usual port: a policy that makes up ports must not look like a site that is down.
        permitted = at_site or (url.host in self._http.config.allow_hosts and url.is_default_port())
        plain = url.scheme in ("http", "https") and url.user is None and link.strip().isprintable()
        return str(url) if permitted and plain else None

    def _show(self, status: int, content_type: str, text: str) -> str:
        if status == 404:
            return "404 no such page"
        if status != 200:
            return f"{status} no page"
        if content_type not in ("text/plain", "text/html"):
            return f"not a text page: {content_type}"
        page = html_text(text) if content_type == "text/html" else text.strip()
        return page[: self._http.config.max_chars] or "an empty page"


class _Text(HTMLParser):
    """Collects what a reader would see."""

    HIDDEN = ("script", "style", "template")
    """Elements whose text is not shown; all of them need a closing tag."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden += tag in self.HIDDEN

    def handle_endtag(self, tag: str) -> None:
        self._hidden = max(0, self._hidden - (tag in self.HIDDEN))

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words += data.split()


def html_text(page: str) -> str:
    """The visible words, single-spaced: "<h1>A</h1><p>b&amp;c" is "A b&c"."""
    parser = _Text()
    parser.feed(page)
    parser.close()
    return " ".join(parser.words)
