"""The tool web_search: a client of search services with Serper's protocol (https://serper.dev).

    POST url {"q": "vexon labs", "num": 5}, X-API-KEY: ...
    200 {"organic": [{"title": "Vexon Labs", "link": "https://...", "snippet": "...", "date": "...", "position": 1}]}

`coa.tools.web.server` implements it too. Every failure of the service is ToolDown, since the policy did not cause it: a
query that the service could refuse is never sent.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from coa.errors import ToolDown
from coa.http.addresses import redact
from coa.http.client import Http, HttpConfig
from coa.http.keys import read_key
from coa.tools.base import ToolCall
from coa.tools.layouts import EMPTY_QUERY, LAYOUTS, Hit
from coa.unicode import whole

QUERY_CHARS = 2000
"""Maximum characters of a query that are sent; Google refuses more than 2048."""


@dataclass(frozen=True)
class SearchConfig:
    """The tool `web_search`."""

    url: str | None = None
    """Address of a search service with Serper's protocol, such as https://google.serper.dev/search; None searches the
    world's site, if it has one."""
    key_env: str | None = None
    """Environment variable that holds the service's key, on the nodes that run tools; None sends no key."""
    hits: int = 5
    """Number of search results that are requested and shown."""
    max_chars: int = 8000
    """Maximum characters of a tool result."""


class WebSearch:
    """The tool web_search: shows the first hits for a query."""

    def __init__(self, config: SearchConfig, http: HttpConfig, url: str) -> None:
        """url: address of the service (`config.url` is not read). Raises UserError if the key is missing."""
        self.http = Http(http)
        self.fingerprint = f"{url} {config}"
        self._config, self._url = config, url
        self._headers = {"X-API-KEY": read_key(config.key_env)} if config.key_env is not None else {}

    def key(self, call: ToolCall) -> str:
        return clean_query(call.argument)

    async def __call__(self, call: ToolCall) -> str:
        query = clean_query(call.argument)
        if not query:
            return EMPTY_QUERY
        return LAYOUTS[call.layout].hits(await self._search(query), self._config.max_chars)

    def counts(self) -> Mapping[str, int]:
        return self.http.counts

    async def close(self) -> None:
        await self.http.close()

    async def _search(self, query: str) -> list[Hit]:
        reply = await self.http.post(self._url, {"q": query, "num": self._config.hits}, self._headers)
        if reply.status != 200:
            raise ToolDown(f"{redact(self._url)}: status {reply.status}")
        try:
            return read_hits(reply.text, self._config.hits)
        except (ValueError, RecursionError) as error:
            raise ToolDown(f"{redact(self._url)}: not a search result ({error}): {reply.text[:80]!r}") from error


def clean_query(argument: str) -> str:
    """The query as it is sent: single-spaced, printable, at most QUERY_CHARS long."""
    printable = "".join(char if char.isprintable() else " " for char in argument)
    return " ".join(printable.split())[:QUERY_CHARS]


def read_hits(text: str, limit: int) -> list[Hit]:
    """The first hits of a service's answer that have a link; raises ValueError or RecursionError if it is malformed, or
    if no hit has a link."""
    match json.loads(text):
        case {"organic": [*found]}:
            hits = [hit for one in found if (hit := _read_hit(one)) is not None]
            if found and not hits:
                raise ValueError("no hit has a link")
            return hits[:limit]
        case {"organic": None} | {"searchParameters": _}:  # Serper echoes the query if it found nothing
            return []
    raise ValueError("no list as organic")


def _read_hit(hit: object) -> Hit | None:
    """A hit, with its texts as far as they are texts or numbers; None if it has no link."""
    match hit:
        case {"link": str(link), **others} if link.strip():
            title, date, snippet = (_text(others.get(name)) for name in ("title", "date", "snippet"))
            return Hit(title, whole(link), f"{date}: {snippet}" if date else snippet)
    return None


def _text(value: object) -> str:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return whole(value) if isinstance(value, str) else ""
