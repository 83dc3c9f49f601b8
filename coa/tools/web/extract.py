"""Extracts the text of web pages, in child processes that can be killed (`coa.processes`).

Some pages keep a parser busy for minutes, others crash it. So child processes parse them, one page at a time; a child
that takes too long is killed, and the next page gets a new child.
"""

import asyncio
import io
import json
import re
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from html.parser import HTMLParser
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

from coa.errors import ToolDown
from coa.http.text import decode, is_charset
from coa.processes import Child, ChildGone, serve

P = ParamSpec("P")
T = TypeVar("T")

HTML = frozenset({"text/html", "application/xhtml+xml"})
XML = frozenset({"text/xml", "application/xml"})
PDF = "application/pdf"
_OF_APPLICATIONS = (
    "json javascript x-javascript ecmascript jsonl ndjson x-ndjson yaml x-yaml toml sql x-sh x-tex x-latex"
)
TEXT = frozenset(f"application/{name}" for name in _OF_APPLICATIONS.split())
"""Media types of text, besides those that begin with `text/` or end with `+json` or `+xml`."""
UNKNOWN = frozenset({"application/octet-stream", "binary/octet-stream", "application/x-unknown", "unknown/unknown"})
"""Media types that say nothing; the first also stands for none at all."""
HEAD_BYTES = 2048
"""First bytes of a body, which show its type and charset."""
START_S = 60.0
"""Maximum seconds for a child to import its modules, on a busy machine."""
MEMORY_BYTES = 2 << 30
"""Maximum address space of a child."""
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]+")
_XML_CHARSET = re.compile(rb"\A\s*+<\?xml[^<>]{1,200}?encoding\s*+=\s*+[\"']([A-Za-z0-9_:.-]{1,40})")
_MARKUP = re.compile(r"<(!doctype\s+html|html|head|body|title|h1|div|p|table|script)\b", re.IGNORECASE)
_FEED = re.compile(r"(?:<[?!][^<>]{0,500}>\s*+)*+<(?:rss|feed|rdf:RDF)\b")
_NO_TEXT = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_META_CHARSET = re.compile(rb"<meta[^<>]{1,200}charset\s*=\s*(?:[\"']\s*)?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a reply, with content type and charset of its headers: `Body(b"<p>a</p>", "text/html", "utf-8")`."""

    data: bytes
    content_type: str
    charset: str


def media_type(declared: str, data: bytes) -> str:
    """The media type of a body: the declared one, unless that says nothing or the body is a PDF."""
    head = decode(data[:HEAD_BYTES]).lstrip()
    if head.startswith("%PDF-"):
        return PDF
    if declared not in UNKNOWN or _NO_TEXT.search(head):
        return declared
    if _MARKUP.match(head):
        return "text/html"
    return "text/xml" if head.startswith("<?xml") or _FEED.match(head) else "text/plain"


def is_text(media_type: str) -> bool:
    """Whether pages of a media type have text: "text/html", "application/rss+xml", but not "image/svg+xml"."""
    kind, _, name = media_type.partition("/")
    of_text = kind == "application" and name.endswith(("+xml", "+json"))
    return kind == "text" or of_text or media_type in TEXT or media_type in XML


def is_plain(media_type: str) -> bool:
    """Whether pages of a media type are shown as they are; others are parsed."""
    return media_type not in HTML | XML | {PDF} and not media_type.endswith("+xml")


def page_text(body: Body) -> str:
    """The main text of a page, the entries of a feed, the text of a PDF, or the whole of a plain text, without NUL and
    control characters."""
    if body.content_type == PDF:
        return _CONTROL.sub(" ", pdf_text(body.data)).strip()
    charset = body.charset if is_charset(body.charset) else ""
    if is_plain(body.content_type):
        return _CONTROL.sub(" ", decode(body.data, charset).replace("\r\n", "\n")).strip()
    markup = _CONTROL.sub(" ", decode(body.data, charset or declared_charset(body.data))).strip()
    if _FEED.match(markup) and (feed := feed_text(markup)):
        return feed
    if body.content_type not in HTML:
        return markup
    return main_text(markup) or visible_words(markup)


def pdf_text(data: bytes) -> str:
    """The text of a PDF, a blank line between its pages; "" if it is encrypted with a password."""
    from pypdf import PdfReader

    reader = PdfReader(io.BytesIO(data))
    if reader.is_encrypted and not reader.decrypt(""):
        return ""
    return "\n\n".join(page.extract_text() for page in reader.pages)


def declared_charset(data: bytes) -> str:
    """The charset that the head of a page declares, or "": `<meta charset="latin-1">` is "latin-1"."""
    found = _XML_CHARSET.match(data[:HEAD_BYTES]) or _META_CHARSET.search(data[:HEAD_BYTES])
    label = found[1].decode() if found else ""
    return "" if label.lower().startswith("utf-16") else label  # it could not have been read


def feed_text(markup: str) -> str:
    """The entries of an RSS or Atom feed, each with its title, date, link and summary; "" if it has none."""
    etree = import_module("lxml.etree")  # slow to import
    parser = etree.XMLParser(recover=True, no_network=True, resolve_entities=False, encoding="utf-8")
    root = etree.fromstring(markup.encode(errors="replace"), parser)
    entries = [] if root is None else [node for node in root.iter() if _name(node.tag) in ("item", "entry")]
    return "\n\n".join(filter(None, map(_entry, entries)))


def _entry(node: Any) -> str:
    """ "Title (date) link", and the summary on a line of its own."""
    found: dict[str, str] = {}
    for child in node:
        part = _PARTS.get(_name(child.tag), "")
        text = visible_words(" ".join(child.itertext()))
        if part == "link" and child.get("rel", "alternate") == "alternate":
            text = text or child.get("href", "")
        if part and text:
            found.setdefault(part, f"({text})" if part == "date" else text)
    head = " ".join(found[part] for part in ("title", "date", "link") if part in found)
    return "\n".join(filter(None, (head, found.get("summary", ""))))


_PARTS = dict.fromkeys(("pubDate", "published", "updated", "date"), "date") | {
    "title": "title",
    "link": "link",
    **dict.fromkeys(("description", "summary", "content", "encoded"), "summary"),
}
"""The part of an entry that a child of it is, by the child's name in any namespace."""


def _name(tag: object) -> str:
    """The name of an element without its namespace; "" for a comment, whose tag is a function."""
    return tag.rpartition("}")[2] if isinstance(tag, str) else ""


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

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        try:
            return super().parse_marked_section(i, report)
        except AssertionError:  # it knows no section of this name: browsers read a comment
            return self.parse_bogus_comment(i, report)

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
        if is_plain(body.content_type):
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
