import asyncio
import os
import re
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from coa.config import from_plain
from coa.errors import UserError
from coa.http.client import HttpConfig
from coa.tools.base import ToolCall
from coa.tools.layouts import Passage
from coa.tools.search.dense import DenseConfig, Encoder, open_dense
from coa.tools.search.wiki import (
    Backend,
    WikiConfig,
    open_index,
    wiki_search,
)
from tests.support.corpora import PASSAGES, contents, jsonl, store_of


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "wiki.jsonl", [contents(passage) for passage in PASSAGES])


def call(query: str, layout: str = "plain") -> ToolCall:
    return ToolCall("wiki_search", query, layout=layout)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A BERT with random weights: what it finds has no sense, and is the same each time."""
    pytest.importorskip("sentence_transformers")
    pytest.importorskip("faiss")
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("encoder")
    letters = [*"abcdefghijklmnopqrstuvwxyz0123456789.,:"]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{letter}" for letter in letters)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=128,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(("factory", "parameters"), [("Flat", ""), ("HNSW8", "efSearch=32"), ("IVF2,Flat", "nprobe=2")])
def test_dense_search_ranks_by_cosine(factory: str, parameters: str, corpus: Path, encoder: Path) -> None:
    config = DenseConfig(encoder=str(encoder), factory=factory, parameters=parameters, batch=2)
    index = open_dense(store_of(corpus), config)
    found = index.search("mayor of arden", 10)

    from sentence_transformers import SentenceTransformer  # pyright: ignore[reportMissingImports]

    model = SentenceTransformer(str(encoder))
    texts = [f"passage: {passage.title}\n{passage.text}" for passage in PASSAGES]
    vectors = model.encode([*texts, "query: mayor of arden"])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    scores = vectors[:-1] @ vectors[-1]
    ranked = np.argsort(-scores).tolist()
    assert [replace(passage, score=0.0) for passage in found] == [PASSAGES[row] for row in ranked]
    assert [passage.score for passage in found] == pytest.approx(scores[ranked].tolist(), abs=1e-5)
    assert re.search(r"/index/dense-.*/index\.faiss", Path("/proc/self/maps").read_text())


def test_a_dense_index_is_built_once_for_each_encoder(corpus: Path, encoder: Path) -> None:
    said: list[str] = []
    config = WikiConfig(backend=Backend.dense, corpus=str(corpus), dense=DenseConfig(encoder=str(encoder)))
    built = []
    for dense in (
        config.dense,
        config.dense,
        replace(config.dense, query_prefix="", parameters="", batch=1),
        replace(config.dense, passage_prefix=""),
    ):
        open_index(replace(config, dense=dense), said.append)
        built.append(sum("building" in line and "dense-" in line for line in said))
    assert built == [1, 1, 1, 2]
    os.utime(encoder / "config.json", ns=(0, 0))  # as if it were another model
    open_index(config, said.append)
    assert sum("building" in line and "dense-" in line for line in said) == 3


def test_prefixes_are_written_before_queries_and_passages(encoder: Path) -> None:
    plain = Encoder(DenseConfig(encoder=str(encoder), query_prefix="", passage_prefix=""))
    prefixed = Encoder(DenseConfig(encoder=str(encoder), query_prefix="q: ", passage_prefix="p: "))
    assert np.array_equal(prefixed.query("arden"), plain.query("q: arden"))
    assert np.array_equal(prefixed.passages([Passage("a", "b")]), plain.query("p: a\nb"))
    assert not np.array_equal(prefixed.query("arden"), plain.query("arden"))


def test_dense_search_by_several_threads(corpus: Path, encoder: Path) -> None:
    tool = wiki_search(
        WikiConfig(backend=Backend.dense, corpus=str(corpus), dense=DenseConfig(encoder=str(encoder)), topk=1),
        HttpConfig(),
    )

    async def go(queries: list[str]) -> list[str]:
        return await asyncio.gather(*(tool(call(query)) for query in queries))

    queries = [f"query {i} " * (i % 5 + 1) for i in range(40)]
    assert asyncio.run(go(queries)) == [asyncio.run(tool(call(query))) for query in queries]


@pytest.mark.parametrize(
    ("settings", "error"),
    [
        ({"factory": "Flot"}, "tools.wiki.dense.factory 'Flot': could not parse index string Flot"),
        ({"factory": "IVF99,Flat"}, "tools.wiki.dense.factory 'IVF99,Flat': .*Number of training points"),
        ({"parameters": "nprobe=3"}, "tools.wiki.dense.parameters 'nprobe=3': .*could not set parameter nprobe"),
        ({"encoder": "/nowhere/encoder"}, "encoder /nowhere/encoder: "),
    ],
)
def test_dense_settings_that_cannot_be_are_named(
    settings: dict[str, str], error: str, corpus: Path, encoder: Path
) -> None:
    config = from_plain(DenseConfig, {"encoder": str(encoder), **settings}, "a recipe")
    with pytest.raises(UserError, match=error):
        open_dense(store_of(corpus), config)


@pytest.mark.parametrize("package", ["faiss", "sentence_transformers"])
def test_a_missing_package_names_the_extra(
    package: str, corpus: Path, encoder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UserError) as raised:
        open_dense(store_of(corpus), DenseConfig(encoder=str(encoder)))
    assert str(raised.value) == f"dense retrieval needs {package}: pip install 'chain-of-agents[dense]'"
