"""Searches a corpus by meaning: a sentence-transformers encoder and an index of faiss.

Both are an extra, `pip install 'chain-of-agents[dense]'`, and are imported on first use.
"""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import ClassVar, TypeVar

import numpy as np

from coa.errors import UserError
from coa.tools.layouts import Passage
from coa.tools.search.corpus import Passages
from coa.tools.search.store import Store

T = TypeVar("T")

TRAINED_ON = 200_000
"""Maximum number of passages, spread evenly over the corpus, on which an index such as IVF is trained."""

_INDEX = "index.faiss"
_FAISS_SOURCE = re.compile(r"Error in .* at \S+:\d+: ")


@dataclass(frozen=True)
class DenseConfig:
    """The encoder and the index of `tools.wiki.backend=dense`."""

    encoder: str = "intfloat/e5-base-v2"
    """Name on the Hugging Face hub, or folder, of a sentence-transformers model."""
    query_prefix: str = "query: "
    """Text that is put before each query, as in the encoder's training."""
    passage_prefix: str = "passage: "
    """Text that is put before each passage, as in the encoder's training."""
    factory: str = "Flat"
    """Kind of index, as a faiss factory string: `Flat` is exact; `HNSW32`, `SQfp16` or `IVF4096,Flat` are for large
    corpora."""
    parameters: str = ""
    """Search parameters of the index, as a faiss string, such as `nprobe=32` (IVF) or `efSearch=64` (HNSW)."""
    batch: int = 256
    """Batch size of the encoder when the index is built, in passages."""

    PATHS: ClassVar = ("encoder",)


class Encoder:
    """Encodes texts as unit vectors, whose inner product is the cosine; one batch at a time."""

    def __init__(self, config: DenseConfig) -> None:
        try:
            from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise _missing(error) from error
        try:
            self._model = SentenceTransformer(config.encoder)
        except (OSError, ValueError) as error:
            raise UserError(f"encoder {config.encoder}: {_first_line(error)}") from error
        self._config = config
        self._lock = threading.Lock()  # a fast tokenizer may not be used by two threads at once

    def query(self, query: str) -> np.ndarray:
        """The query's vector: float32 [1, dimensions]."""
        return self._encode([f"{self._config.query_prefix}{query}"])

    def passages(self, passages: Sequence[Passage]) -> np.ndarray:
        """The passages' vectors: float32 [passages, dimensions]."""
        return self._encode([f"{self._config.passage_prefix}{passage.title}\n{passage.text}" for passage in passages])

    def _encode(self, texts: list[str]) -> np.ndarray:
        with self._lock:
            vectors = self._model.encode(
                texts, batch_size=self._config.batch, normalize_embeddings=True, show_progress_bar=False
            )
        return np.ascontiguousarray(vectors, np.float32)


class Dense:
    """A faiss index, memory-mapped."""

    def __init__(self, folder: Path, passages: Passages, encoder: Encoder, parameters: str) -> None:
        faiss = _faiss()
        self.name = folder.name
        self._index = faiss.read_index(str(folder / _INDEX), faiss.IO_FLAG_MMAP_IFC)
        if parameters:
            asked, space = f"tools.wiki.dense.parameters {parameters!r}", faiss.ParameterSpace()
            _apply(asked, lambda: space.set_index_parameters(self._index, parameters))
        self._passages = passages
        self._encoder = encoder

    def search(self, query: str, topk: int) -> list[Passage]:
        scores, rows = self._index.search(self._encoder.query(query), min(topk, len(self._passages)))
        return [
            replace(self._passages[int(row)], score=float(score))
            for score, row in zip(scores[0], rows[0], strict=True)
            if row >= 0  # an approximate index may find fewer than topk passages
        ]


def open_dense(store: Store, config: DenseConfig) -> Dense:
    """The index of the corpus, built first if there is none yet; raises UserError for a bad corpus, encoder or
    index."""
    faiss = _faiss()
    encoder = Encoder(config)
    passages = store.passages()

    def build(folder: Path) -> None:
        asked = f"tools.wiki.dense.factory {config.factory!r}"
        dimensions = encoder.query("").shape[1]
        index = _apply(asked, lambda: faiss.index_factory(dimensions, config.factory, faiss.METRIC_INNER_PRODUCT))
        if not index.is_trained:
            spread = range(0, len(passages), max(1, len(passages) // TRAINED_ON))
            sample = np.concatenate([encoder.passages(some) for some in _batches(passages, spread, config.batch)])
            _apply(asked, lambda: index.train(sample))
        batches = _batches(passages, range(len(passages)), config.batch)
        for some in store.count(batches, f"batches of {config.batch} passages encoded"):
            index.add(encoder.passages(some))
        faiss.write_index(index, str(folder / _INDEX))

    # Without the libraries' versions: faiss reads indexes of older versions, and encoding may take days.
    settings = {
        "encoder": config.encoder,
        "files": _files(Path(config.encoder)),
        "passage_prefix": config.passage_prefix,
        "factory": config.factory,
    }
    return Dense(store.index("dense", passages, settings, build), passages, encoder, config.parameters)


def _batches(passages: Passages, rows: range, size: int) -> Iterator[list[Passage]]:
    for start in range(0, len(rows), size):
        yield [passages[row] for row in rows[start : start + size]]


def _files(folder: Path) -> list[tuple[str, int, int]]:
    """Name, size in bytes and modification time of each file of a local model; empty for a model on the hub."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(str(path.relative_to(folder)), path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def _faiss() -> ModuleType:
    try:
        import faiss  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise _missing(error) from error
    return faiss


def _apply(asked: str, action: Callable[[], T]) -> T:
    """Runs an action of faiss that applies a setting; converts faiss's RuntimeError for a bad setting to UserError."""
    try:
        return action()
    except RuntimeError as error:
        raise UserError(f"{asked}: {_FAISS_SOURCE.sub('', _first_line(error))}") from error


def _missing(error: ImportError) -> UserError:
    return UserError(f"dense retrieval needs {error.name}: pip install 'chain-of-agents[dense]'")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
