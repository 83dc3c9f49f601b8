"""The tool wiki_search: finds passages of an encyclopedia for a query.

Its passages come from an index of a corpus in this process (BM25 or dense), from a remote retriever with the common
protocol (`coa.tools.search.server` serves any of the indexes by it), or, in a world with its own articles, from a
dictionary.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Annotated, ClassVar, Protocol

from annotated_types import Ge, Le

from coa.errors import ToolDown
from coa.http.addresses import redact
from coa.http.client import Http, HttpConfig
from coa.tools.base import ToolCall
from coa.tools.layouts import EMPTY_QUERY, LAYOUTS, NO_RESULT, Passage
from coa.tools.search.bm25 import open_bm25
from coa.tools.search.corpus import as_passage
from coa.tools.search.dense import DenseConfig, open_dense
from coa.tools.search.store import Say, Store, to_stderr

MAX_QUERY_CHARS = 1000
"""Maximum characters of a query in its canonical form; a longer text would be slow to search for."""
MAX_TOPK = 100
"""Maximum passages per query, including those of a retriever."""


class Backend(Enum):
    bm25 = "bm25"
    dense = "dense"
    retriever = "retriever"


@dataclass(frozen=True)
class WikiConfig:
    """The tool `wiki_search`."""

    backend: Backend = Backend.bm25
    """How passages are found: bm25 (by words), dense (by vectors) or retriever (by a remote service)."""
    corpus: str = ""
    """JSONL or Parquet file of passages (`coa.tools.search.corpus`); empty for the world's articles, or with a
    retriever, which has its own corpus."""
    index: str = ""
    """Folder of the index that is built from the corpus; empty takes CORPUS.index beside the corpus."""
    topk: Annotated[int, Ge(1), Le(MAX_TOPK)] = 3
    """Number of passages in a tool result."""
    language: str = "english"
    """Language of BM25's stop words and stemmer (`coa.tools.search.bm25.words_of`); empty for neither."""
    dense: DenseConfig = field(default_factory=DenseConfig)
    retriever: str = ""
    """Address of the retriever to which queries are posted, such as http://10.0.0.7:8000/retrieve."""

    PATHS: ClassVar = ("corpus", "index")

    def __post_init__(self) -> None:
        if self.backend is Backend.dense and not self.corpus:
            raise ValueError("backend is dense, and corpus names no corpus")
        if (self.backend is Backend.retriever) != bool(self.retriever):
            raise ValueError("backend=retriever and retriever, an address, go together")
        if self.retriever and not self.retriever.startswith(("http://", "https://")):
            raise ValueError(f"retriever is {self.retriever!r}, expected http://... or https://...")

    @property
    def configured(self) -> bool:
        """Whether the settings name a corpus or a retriever."""
        return bool(self.corpus or self.retriever)


class Index(Protocol):
    name: str
    """A fingerprint of what the index was built from."""

    def search(self, query: str, topk: int) -> list[Passage]:
        """Up to `topk` passages, best first, each with its score; thread-safe."""
        ...


Find = Callable[[str], Awaitable[Sequence[Passage]]]
"""Finds the passages for a query, best first; raises ToolDown."""


def folded(title: str) -> str:
    """A title with case and spacing normalised: " Vexon  labs" is "vexon labs"."""
    return " ".join(title.split()).casefold()


def canonical(query: str) -> str:
    """As `folded`, with unreadable characters (NUL, half a surrogate pair) replaced by blanks."""
    return folded("".join(char if char.isprintable() else " " for char in query))


def query_of(call: ToolCall) -> str:
    """The query of a call in canonical form, which may be longer ("\u0390" folds to three characters); if it is too
    long, the query is returned unchanged."""
    return canonical(call.argument) if len(call.argument) <= MAX_QUERY_CHARS else call.argument


class WikiSearch:
    """The tool, for any function that finds passages. Queries are sent in canonical form, so equal keys get equal
    results."""

    def __init__(self, find: Find, fingerprint: str, http: Http | None = None) -> None:
        """fingerprint: differs if `find` searches other passages; http: the client that `find` uses, closed with the
        tool."""
        self.fingerprint = fingerprint
        self._find = find
        self._http = http

    def key(self, call: ToolCall) -> str | None:
        query = query_of(call)
        return query if len(query) <= MAX_QUERY_CHARS else None

    async def __call__(self, call: ToolCall) -> str:
        query = query_of(call)
        if len(query) > MAX_QUERY_CHARS:
            return f"the query has {len(query)} characters, {MAX_QUERY_CHARS} are allowed"
        return LAYOUTS[call.layout].passages(await self._find(query)) if query else EMPTY_QUERY

    def counts(self) -> Mapping[str, int]:
        return self._http.counts if self._http is not None else {}

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


class TitleLookup:
    """An encyclopedia with one article per title, which is found only by its title."""

    def __init__(self, articles: Mapping[str, str]) -> None:
        """`articles`: title to text."""
        self._articles = {folded(title): text for title, text in articles.items()}

    def key(self, call: ToolCall) -> str:
        return folded(call.argument)

    async def __call__(self, call: ToolCall) -> str:
        title = folded(call.argument)
        return self._articles.get(title, NO_RESULT) if title else EMPTY_QUERY


def open_index(config: WikiConfig, say: Say = to_stderr) -> Index:
    """The index of `config.corpus`, built first if there is none yet, which takes minutes for a million passages.

    Raises UserError for a bad corpus, encoder, language or folder, and if a package is missing.
    """
    corpus = Path(config.corpus)
    store = Store(corpus, Path(config.index) if config.index else corpus.with_name(f"{corpus.name}.index"), say)
    return open_dense(store, config.dense) if config.backend is Backend.dense else open_bm25(store, config.language)


def wiki_search(config: WikiConfig, http_config: HttpConfig) -> WikiSearch:
    """The tool that the configuration describes; http_config: for a retriever."""
    if config.backend is Backend.retriever:
        http = Http(http_config)
        return WikiSearch(Retriever(http, config.retriever, config.topk), str(config), http)
    index = open_index(config)

    async def find(query: str) -> Sequence[Passage]:
        return await asyncio.to_thread(index.search, query, config.topk)

    return WikiSearch(find, f"{index.name} {config}")


class Retriever:
    """A client of the retrieval protocol that `coa.tools.search.server` describes."""

    def __init__(self, http: Http, url: str, topk: int) -> None:
        self._http = http
        self._url = url
        self._topk = topk

    async def __call__(self, query: str) -> list[Passage]:
        reply = await self._http.post(self._url, {"queries": [query], "topk": self._topk, "return_scores": True})
        if reply.status != 200:  # 400 too, since only valid queries are sent
            raise ToolDown(f"{redact(self._url)}: status {reply.status}: {reply.text[:200]}")
        try:
            return read_reply(reply.text)[: self._topk]
        except (ValueError, RecursionError) as error:
            raise ToolDown(f"{redact(self._url)}: not a retriever's reply ({error}): {reply.text[:80]!r}") from error


def read_reply(text: str) -> list[Passage]:
    """The passages in a reply to one query, with or without scores, as far as they can be read; raises ValueError or
    RecursionError if none can."""
    match json.loads(text):
        case {"result": [[*found]]}:
            read, why = list[Passage](), None
            for item in found:
                try:
                    read.append(_read_found(item))
                except ValueError as error:
                    why = error
            if why is not None and not read:
                raise why
            return read
        case _:
            raise ValueError("no list of one list as result")


def _read_found(item: object) -> Passage:
    match item:
        case {"document": document, "score": int() | float() as score}:
            return replace(as_passage(document), score=score)
        case {"document": document}:
            return as_passage(document)
        case _:
            return as_passage(item)
