"""Searches a corpus by its words: BM25 by bm25s, in this process; the default backend."""

import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from coa.errors import UserError
from coa.tools.layouts import Passage
from coa.tools.search.corpus import Passages
from coa.tools.search.store import Store

K1, B = 0.9, 0.4
"""BM25's parameters: those of Anserini and Pyserini, with which published results on Wikipedia were obtained."""

RULES = 1
"""Version of `words_of`, increased when it changes, so that older indexes are not used."""

_WORD = re.compile(r"\w+")
_POSSESSIVE = re.compile("['\u2019]s\\b")
_ACCENTS = re.compile("[\u0300-\u036f]")


def words_of(language: str) -> Callable[[str], list[str]]:
    """A function that returns a text's search terms: stemmed words in lower case, without accents and stop words. It is
    not thread-safe.

    words_of("english")("The Curie's Élysée 8") == ["curi", "elyse", "8"]. A language is one that both the stop words
    of bm25s and the Snowball stemmers support; "" keeps stop words and endings. Raises UserError for any other.
    """
    if not language:
        return lambda text: _WORD.findall(_fold(text))
    import Stemmer
    from bm25s.tokenization import Tokenizer

    try:
        stop = frozenset(map(_fold, Tokenizer(stopwords=language).stopwords))
        stem = cache(Stemmer.Stemmer(language).stemWord)
    except (KeyError, ValueError) as error:
        raise UserError(f"no stop words and stemmer for the language {language!r}; try english") from error
    return lambda text: [stem(word) for word in _WORD.findall(_fold(text)) if word not in stop]


def _fold(text: str) -> str:
    text = _POSSESSIVE.sub("", text)
    if text.isascii():
        return text.lower()
    return _ACCENTS.sub("", unicodedata.normalize("NFKD", text)).casefold()


class Bm25:
    """An index of bm25s, memory-mapped: a query reads only the postings of its words."""

    def __init__(self, folder: Path, passages: Passages, language: str) -> None:
        import bm25s

        self.name = folder.name
        self._index = bm25s.BM25.load(folder, mmap=True)
        # A view as a plain array: NumPy is faster with it than with its memmap class.
        self._index.scores |= {key: np.asarray(self._index.scores[key]) for key in ("data", "indices", "indptr")}
        self._passages = passages
        self._language = language

    def search(self, query: str, topk: int) -> list[Passage]:
        """The best passages that share a word with the query, best first; ties in the order of the corpus."""
        words = self._index.get_tokens_ids(words_of(self._language)(query))
        if not words:
            return []
        scores = self._index.get_scores_from_ids(words)
        found = []
        for _ in range(min(topk, len(self._passages))):
            row = int(scores.argmax())  # for a small topk, several times faster than a partition
            if scores[row] <= 0:
                break
            found.append(replace(self._passages[row], score=float(scores[row])))
            scores[row] = 0
        return found


def open_bm25(store: Store, language: str) -> Bm25:
    """The index of the corpus, built first if there is none yet; raises UserError for a bad corpus or language.

    Building takes 30 bytes of memory for each distinct word of each passage (bm25s sorts all of them at once): 1.1 GiB
    for half a million passages of 100 words. Opening takes the memory of the vocabulary.
    """
    passages = store.passages()
    words = words_of(language)

    def build(folder: Path) -> None:
        import bm25s

        vocabulary = {"": 0}  # the word of passages without words
        rows: Any = _Rows()
        for passage in store.count(passages, "passages split into words"):
            found = words(f"{passage.title} {passage.text}") or [""]
            rows.append(vocabulary.setdefault(word, len(vocabulary)) for word in found)
        store.say(f"{store.corpus.name}: scoring {len(rows):,} passages")
        index = bm25s.BM25(k1=K1, b=B, method="lucene", csc_backend="auto")
        index.index(bm25s.tokenization.Tokenized(ids=rows, vocab=vocabulary), show_progress=False)
        index.save(folder, show_progress=False)

    versions = {package: version(package) for package in ("bm25s", "PyStemmer")}
    settings = {**versions, "rules": RULES, "language": language, "k1": K1, "b": B}
    return Bm25(store.index("bm25", passages, settings, build), passages, language)


class _Rows:
    """Lists of numbers with four bytes per number, half of a Python list or less; bm25s iterates over them three
    times."""

    def __init__(self) -> None:
        self._numbers = array("i")
        self._ends = array("q", [0])

    def append(self, numbers: Iterable[int]) -> None:
        self._numbers.extend(numbers)
        self._ends.append(len(self._numbers))

    def __len__(self) -> int:
        return len(self._ends) - 1

    def __iter__(self) -> Iterator[Sequence[int]]:
        return (self._numbers[start:end] for start, end in pairwise(self._ends))
