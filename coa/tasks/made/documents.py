"""Reads a folder of documents (text, Markdown, HTML, PDF), and cuts them into passages.

A document that has no text, or the text of another one, is left out, and why is told.
"""

import asyncio
import hashlib
import os
import re
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from coa.errors import UserError
from coa.storage.chunks import chunks
from coa.tools.layouts import Passage
from coa.tools.web.extract import PDF, Body, Extractor, is_plain

TYPES = {
    **dict.fromkeys((".txt", ".text", ".md", ".markdown", ".rst"), "text/plain"),
    **dict.fromkeys((".html", ".htm"), "text/html"),
    ".xhtml": "application/xhtml+xml",
    ".pdf": PDF,
}
"""Media type of a document by the end of its name."""
LARGEST = 64 << 20
"""Maximum bytes of a document."""
READ_S = 60.0
"""Maximum seconds in which the text of a document is found."""
AT_ONCE = 32
"""Documents that are read at the same time."""
PASSAGE_CHARS = 1000
"""Maximum characters of a passage."""
TITLE_CHARS = 120
"""Maximum characters of a first line that is taken for the title."""

EMPTY, NO_TEXT, ENCRYPTED, SAME = "empty", "no text in it", "encrypted", "the text of another one"
UNREADABLE, TOO_LARGE, OTHER_FORMAT = "can't be read", "too large", "another format"

_HEADING = re.compile(r"#{1,6} ++([^\n]++)")
_BLANK_LINE = re.compile(r"\n[ \t]*+\n\s*+")
_SENTENCE_END = re.compile("(?<=[.!?]) |(?<=[\u3002\uff01\uff1f])")


@dataclass(frozen=True, slots=True)
class Document:
    name: str
    """Its path below the folder."""
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Unread:
    """A document that is left out."""

    name: str
    why: str


def files_in(folder: Path) -> list[Path]:
    """The files below the folder, in the order of their names, without hidden ones. Raises UserError if there are no
    documents among them, or if a package is missing that reads them."""
    if not folder.is_dir():
        raise UserError(f"world.corpus: no folder at {folder}")
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    types = {TYPES.get(path.suffix.lower()) for path in found}
    if not types - {None}:
        raise UserError(f"world.corpus: no documents in {folder}: known are {', '.join(TYPES)}")
    if PDF in types and find_spec("pypdf") is None:
        raise UserError("world.corpus: pypdf, which reads PDF, is not installed: pip install 'chain-of-agents[pdf]'")
    return found


async def read_documents(folder: Path) -> AsyncGenerator[Document | Unread]:
    """The documents below the folder, in the order of `files_in`, whose errors it raises."""
    known: dict[str, str] = {}
    extractor = Extractor(os.cpu_count() or 1, READ_S)
    try:
        for some in chunks(files_in(folder), AT_ONCE):
            for read in await asyncio.gather(*(_read(folder, path, extractor) for path in some)):
                if isinstance(read, Document):
                    first = known.setdefault(_digest(read.text), read.name)
                    if first != read.name:
                        yield Unread(read.name, f"{SAME}: {first}")
                        continue
                yield read
    finally:
        await extractor.close()


async def _read(folder: Path, path: Path, extractor: Extractor) -> Document | Unread:
    name = str(path.relative_to(folder))
    if (kind := TYPES.get(path.suffix.lower())) is None:
        return Unread(name, OTHER_FORMAT)
    try:
        size = path.stat().st_size
        if size > LARGEST:
            return Unread(name, TOO_LARGE)
        data = await asyncio.to_thread(path.read_bytes)
    except OSError as error:
        return Unread(name, f"{UNREADABLE}: {error.strerror or error}")
    if not data.strip():
        return Unread(name, EMPTY)
    deadline = asyncio.get_running_loop().time() + 2 * READ_S
    text = await extractor.text(Body(data, kind, ""), deadline)
    if text is None:
        return Unread(name, UNREADABLE)
    if not text.strip():
        return Unread(name, ENCRYPTED if kind == PDF and b"/Encrypt" in data else NO_TEXT)
    return Document(name, title_of(path.stem, text, plain=is_plain(kind)), text)


def _digest(text: str) -> str:
    return hashlib.sha256(" ".join(text.split()).encode()).hexdigest()


def title_of(stem: str, text: str, *, plain: bool) -> str:
    """The document's title: its first line if that is a heading of Markdown, or, in a plain text, a short line that
    stands alone; otherwise its file's name.

    title_of("a_1", "# The Arden mill\\n\\nIt is ...", plain=True) == "The Arden mill"
    """
    if heading := _HEADING.match(text):
        return heading[1].strip()
    first, alone, _ = text.partition("\n\n")
    if plain and alone and "\n" not in first and len(first) <= TITLE_CHARS and first[-1] not in ".!?":
        return first.strip()
    return " ".join(re.split(r"[\s_]+", stem))


def passages_of(document: Document) -> Iterator[Passage]:
    """The text in passages of at most PASSAGE_CHARS: whole paragraphs where they fit, else whole sentences."""
    part = ""
    for piece, paragraph in _pieces(document.text):
        glue = "\n" if paragraph else " "
        if part and len(part) + len(glue) + len(piece) > PASSAGE_CHARS:
            yield Passage(document.title, part)
            part = ""
        part = f"{part}{glue}{piece}" if part else piece
    if part:
        yield Passage(document.title, part)


def _pieces(text: str) -> Iterator[tuple[str, bool]]:
    """Paragraphs, or the sentences of long ones, or the parts of long sentences, single-spaced; and whether each
    begins a paragraph."""
    for paragraph in _BLANK_LINE.split(text.replace("\r\n", "\n")):
        whole = " ".join(paragraph.split())
        pieces = [whole] if len(whole) <= PASSAGE_CHARS else _SENTENCE_END.split(whole)
        begins = True
        for piece in pieces:
            for at in range(0, len(piece), PASSAGE_CHARS):
                yield piece[at : at + PASSAGE_CHARS], begins
                begins = False


async def read_passages(folder: Path) -> tuple[list[Passage], list[Unread]]:
    """The passages of all documents, and the documents that are left out; raises UserError if there is no passage."""
    passages: list[Passage] = []
    unread: list[Unread] = []
    async with aclosing(read_documents(folder)) as documents:
        async for read in documents:
            if isinstance(read, Unread):
                unread.append(read)
            else:
                passages += passages_of(read)
    if not passages:
        first = unread[0]
        raise UserError(
            f"world.corpus: no text in {folder}: {len(unread)} documents, such as {first.name}: {first.why}"
        )
    return passages, unread
