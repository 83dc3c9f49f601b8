"""The tool crawl_page: reads web pages by their addresses, and shows the parts that are relevant to the call's goal.

    links -> may they be read? -> reader, or fetch and follow redirects -> main text -> by goal -> layout

`_fetch` distinguishes two kinds of failure. If a page that the policy chose cannot be read (unknown host, refused, 403,
endless, no text), the observation reports it. The reader, the summary endpoint and the configured site are services of
the run: their failures are ToolDown, and never become an observation.
"""

import asyncio
import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import aiohttp
from yarl import URL

from coa.errors import ToolDown
from coa.http.addresses import NotAllowed, Reach, connect_publicly, read_link, redact, with_port
from coa.http.client import Http, HttpConfig, NoReply, Reply
from coa.http.keys import bearer
from coa.tools.base import Fleeting, ToolCall
from coa.tools.cache import Memo
from coa.tools.layouts import LAYOUTS
from coa.tools.web.extract import Body, Extractor, is_text, media_type, page_text
from coa.tools.web.summary import PROMPT, Summariser, SummaryConfig, relevant

PAGE_FAULTS = frozenset({400, 404, 410, 422, 451})
"""Statuses by which a reader reports a fault of the page; all others are faults of the reader: key, credit, load."""
GONE = frozenset({404, 410})
MAX_REDIRECTS = 5
"""Of a page."""
TEXT_CHARS = 200_000
"""Maximum characters of a page's text that are used."""
KEPT_PAGES = 512
"""Maximum number of page texts that are kept in memory, since the same page is often read again."""
_MARKDOWN_LINK = re.compile(r"\[[^\[\]]*\]\(\s*+<?((?:[^()<>\s]|\([^()<>\s]*\))*+)>?(?:\s+\"[^\"]*\")?\s*\)")


@dataclass(frozen=True)
class CrawlConfig:
    """The tool `crawl_page`."""

    site: str | None = None
    """Base URL of your own site, against which relative links are resolved; None takes the world's site if
    `tools.search` uses it too."""
    open_web: bool = False
    """Whether every public host may be read, at the usual ports."""
    allow_hosts: tuple[str, ...] = ()
    """Further hosts that may be read, as `host` or `host:port`; they may be in a private network."""
    reader: str | None = None
    """URL prefix of a service that reads pages, such as https://r.jina.ai/: `GET PREFIX + address` returns a page's
    text. The service gets all public addresses, and must itself refuse addresses of private networks."""
    reader_key_env: str | None = None
    """Environment variable that holds the reader's key, on the nodes that run tools; None sends no key."""
    pages: int = 5
    """Maximum number of pages that one call of `crawl_page` reads."""
    max_chars: int = 8000
    """Maximum characters of a tool result, over all its pages."""
    page_s: float = 15.0
    """Maximum seconds to fetch a page, including redirects and retries."""
    extract_s: float = 5.0
    """Maximum seconds to extract the text of a page, including the wait for a free extractor; begins at the latest
    after `page_s`."""
    extractors: int = 2
    """Number of processes that extract the text of pages."""
    summary: SummaryConfig = field(default_factory=SummaryConfig)

    @property
    def leads_somewhere(self) -> bool:
        return bool(self.site or self.open_web or self.allow_hosts or self.reader)

    @property
    def call_s(self) -> float:
        """Maximum seconds of a call if no service of ours is down; its pages are read concurrently."""
        return self.page_s + self.extract_s + (self.summary.timeout_s if self.summary.url else 0.0)


@dataclass(frozen=True, slots=True)
class Page:
    """The text of a page, or the reason why there is none."""

    text: str
    read: bool = True
    """Whether the page was read; if False, `text` is the reason why not."""
    lasting: bool = True
    """Whether another attempt would give the same result."""


class CrawlPage:
    """The tool crawl_page; a call's argument is addresses, separated by `|`."""

    def __init__(
        self,
        config: CrawlConfig,
        http: HttpConfig,
        site: str | None = None,
        connector: Callable[..., aiohttp.BaseConnector] = aiohttp.TCPConnector,
    ) -> None:
        """site: used if `config.site` is None. Raises UserError if a key is missing."""
        site = config.site or site
        base = URL(site.rstrip("/") + "/") if site else None
        self._config, self._site = config, base.origin() if base else None
        self._reach = Reach(
            base=str(base or ""),
            hosts={*map(str.lower, config.allow_hosts), *([with_port(base)] if base else ())},
            open_web=config.open_web or config.reader is not None,
        )
        self.fingerprint = f"{site} {config} {hashlib.sha256(PROMPT.encode()).hexdigest()}"
        # Not through a proxy, which would resolve names itself, to addresses of the internal network too.
        self._public = Http(http, partial(connector, socket_factory=connect_publicly), proxies=False)
        self._known = Http(http, connector)
        self._reader = Http(replace(http, timeout_s=config.page_s))
        self._reader_headers = bearer(config.reader_key_env)
        self._summariser = Summariser(config.summary, http) if config.summary.url else None
        self._extractor = Extractor(config.extractors, config.extract_s)
        self._pages: Memo[Page] = Memo(KEPT_PAGES, keep=lambda page: page.lasting)

    def key(self, call: ToolCall) -> str:
        return json.dumps([read_links(call.argument), call.goal])

    async def __call__(self, call: ToolCall) -> str:
        links = read_links(call.argument)
        left_out = len(links) - self._config.pages
        links = links[: self._config.pages]
        pages = await asyncio.gather(*(self._pages.get(link, partial(self._read, link)) for link in links))
        room = self._config.max_chars // len(links)
        texts = await asyncio.gather(*(self._shorten(page, call.goal, room) for page in pages))
        blocks = [LAYOUTS[call.layout].page(link, text) for link, text in zip(links, texts, strict=True)]
        if left_out > 0:
            blocks.append(f"{left_out} more addresses were left out, {len(links)} are read at a time")
        observation = "\n\n".join(blocks)
        return observation if all(page.lasting for page in pages) else Fleeting(observation)

    def counts(self) -> Mapping[str, int]:
        clients = [self._public, self._known, self._reader, *([self._summariser.http] if self._summariser else ())]
        return sum((client.counts for client in clients), Counter())

    async def close(self) -> None:
        for part in (self._public, self._known, self._reader, self._extractor, self._summariser):
            if part is not None:
                await part.close()

    async def _shorten(self, page: Page, goal: str, room: int) -> str:
        if self._summariser is not None and page.read and page.text:
            return (await self._summariser.summarise(page.text, goal))[:room]
        return await asyncio.to_thread(relevant, page.text, goal, room)

    async def _read(self, link: str) -> Page:
        try:
            return await self._follow(link)
        except NotAllowed as error:
            return Page(f"refused: {error}", read=False)
        except NoReply as error:
            return Page(f"no page: {error}", read=False, lasting=False)

    async def _follow(self, link: str) -> Page:
        deadline = asyncio.get_running_loop().time() + self._config.page_s
        base = ""
        for _ in range(1 + MAX_REDIRECTS):
            # Each redirect is checked again: a page must not redirect to an address that a link may not name.
            url, known = read_link(link, self._reach, base)
            if self._config.reader is not None and not known:
                return await self._ask_reader(self._config.reader, url)
            reply = await self._fetch(url, known, deadline)
            if not (300 <= reply.status < 400 and reply.location):
                return await self._show(reply, deadline)
            base, link = str(url), reply.location
        return Page("too many redirects", read=False)

    async def _fetch(self, url: URL, known: bool, deadline: float) -> Reply:
        """The reply of a page's server; raises ToolDown if the configured site fails, NoReply if another server
        does."""
        if url.origin() == self._site:
            return await self._known.get(url)
        client = self._known if known else self._public
        try:
            async with asyncio.timeout_at(deadline):
                return await client.fetch(url)
        except TimeoutError:
            raise NoReply("timeout", f"nothing within {self._config.page_s:g} s") from None

    async def _ask_reader(self, reader: str, url: URL) -> Page:
        address = URL(f"{reader}{url}", encoded=True)
        reply = await self._reader.get(address, self._reader_headers)
        if reply.status == 200:
            return Page(page_text(Body(reply.body, "text/plain", reply.charset))[:TEXT_CHARS])
        if reply.status in PAGE_FAULTS:
            return _no_page(reply.status)
        raise ToolDown(f"{redact(reader)}: status {reply.status}")

    async def _show(self, reply: Reply, deadline: float) -> Page:
        """The page in a reply. deadline: of the fetch; the configured site may have taken longer."""
        if reply.status != 200:
            return _no_page(reply.status)
        content_type = media_type(reply.content_type, reply.body)
        if not is_text(content_type):
            return Page(f"not a text page: {content_type}", read=False)
        latest = max(deadline, asyncio.get_running_loop().time()) + self._config.extract_s
        text = await self._extractor.text(Body(reply.body, content_type, reply.charset), latest)
        if text is None:
            return Page("no page: its text was not found in time", read=False, lasting=False)
        return Page(text[:TEXT_CHARS])


def _no_page(status: int) -> Page:
    text = "404 no such page" if status == 404 else f"{status} no page"
    return Page(text, read=False, lasting=status in GONE)


def read_links(argument: str) -> list[str]:
    """The addresses of a call, without repetitions; at least one: "[A](http://a.org) | b" is http://a.org and b."""
    plain = _MARKDOWN_LINK.sub(lambda match: match[1], argument)
    links = [part.strip().removeprefix("<").removesuffix(">") for part in plain.split("|")]
    return list(dict.fromkeys(filter(None, links))) or [""]
