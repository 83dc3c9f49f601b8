"""Extracts the text of web pages, in child processes that can be killed (`coa.processes`).

Some pages keep a parser busy for minutes, others crash it. So child processes parse them, one page at a time; a child
that takes too long is killed, and the next page gets a new child.
"""

import asyncio
import json
import re
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from typing import ParamSpec, TypeVar

from coa.errors import ToolDown
from coa.http.text import decode
from coa.processes import Child, ChildGone, serve

P = ParamSpec("P")
T = TypeVar("T")

HTML = frozenset({"text/html", "application/xhtml+xml"})
TEXT = frozenset({"text/plain", "text/markdown", "text/csv", "application/json", "application/xml", "text/xml"})
START_S = 60.0
"""Maximum seconds for a child to import its modules, on a busy machine."""
MEMORY_BYTES = 2 << 30
"""Maximum address space of a child."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_META_CHARSET = re.compile(rb"<meta[^<>]{1,200}charset\s*=\s*(?:[\"']\s*)?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a reply, with content type and charset of its headers: `Body(b"<p>a</p>", "text/html", "utf-8")`."""

    data: bytes
    content_type: str
    charset: str


def page_text(body: Body) -> str:
    """The main text of a page, or the whole of a plain text, without NUL and control characters."""
    if body.content_type not in HTML:
        return _CONTROL.sub(" ", decode(body.data, body.charset).replace("\r\n", "\n")).strip()
    markup = _CONTROL.sub(" ", decode(body.data, body.charset or declared_charset(body.data)))
    return main_text(markup) or visible_words(markup)


def declared_charset(data: bytes) -> str:
    """The charset that the head of an HTML page declares, or "": `<meta charset="latin-1">` is "latin-1"."""
    found = _META_CHARSET.search(data[:2048])
    return found[1].decode() if found else ""


def main_text(markup: str) -> str:
    """The page's article without navigation and the like, a line per paragraph; "" if none is found."""
    import trafilatura

    return trafilatura.extract(markup, include_comments=False) or ""


class _Text(HTMLParser):
    """Collects the words that a reader of the page would see."""

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


def visible_words(markup: str) -> str:
    """The visible words of a page, single-spaced: "<h1>A</h1><p>b&amp;c" is "A b&c"."""
    parser = _Text()
    parser.feed(markup)
    parser.close()
    return " ".join(parser.words)


class Extractor:
    """Extracts texts in up to `children` processes: `await Extractor(2, limit_s=5.0).text(body, deadline)`."""

    def __init__(self, children: int, limit_s: float) -> None:
        self._limit_s = limit_s
        self._idle: list[Child] = []
        self._permits = asyncio.Semaphore(children)
        self._threads = ThreadPoolExecutor(children, thread_name_prefix="extractor")

    async def text(self, body: Body, deadline: float) -> str | None:
        """The page's text; None if the extraction fails or exceeds `limit_s` or the deadline (the event loop's clock).
        Raises ToolDown if no child can be started."""
        if body.content_type not in HTML:
            return page_text(body)
        try:
            async with asyncio.timeout_at(deadline):
                await self._permits.acquire()
        except TimeoutError:
            return None
        try:
            return await self._read(body, deadline)
        finally:
            self._permits.release()

    async def _read(self, body: Body, deadline: float) -> str | None:
        child = await self._take()
        try:
            text = await self._in_thread(child, child.ask, _request(body), self._seconds_until(deadline))
        except ChildGone:
            return None  # the child was too slow or failed
        self._idle.append(child)
        return text.decode()

    async def _take(self) -> Child:
        while self._idle:
            if (child := self._idle.pop()).alive:
                return child
            child.close()
        child = Child(__name__)
        try:
            await self._in_thread(child, child.started, START_S)
        except ChildGone as gone:
            raise ToolDown("the process that reads pages does not start") from gone
        return child

    async def _in_thread(self, child: Child, act: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Runs `act` in a thread. Cancelling the caller ends the child, and with it the thread's wait."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, partial(act, *args, **kwargs))
        except asyncio.CancelledError:
            child.end()
            raise

    def _seconds_until(self, deadline: float) -> float:
        return min(self._limit_s, deadline - asyncio.get_running_loop().time())

    async def close(self) -> None:
        while self._idle:
            self._idle.pop().close()
        self._threads.shutdown(wait=False)


def _request(body: Body) -> bytes:
    return json.dumps([body.content_type, body.charset]).encode() + b"\n" + body.data


def _answer(request: bytes) -> bytes:
    head, _, data = request.partition(b"\n")
    content_type, charset = json.loads(head)
    return page_text(Body(data, content_type, charset)).encode(errors="replace")


def _serve() -> None:
    import trafilatura  # noqa: F401  (before the first page, since the import takes longer than a page)

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    serve(_answer)


if __name__ == "__main__":
    _serve()
