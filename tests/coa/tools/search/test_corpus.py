import gzip
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from coa.errors import UserError
from coa.tools.layouts import Passage
from coa.tools.search.corpus import Passages, as_passage, read_corpus, write_passages
from coa.tools.search.wiki import (
    WikiConfig,
    open_index,
)
from tests.support.corpora import PASSAGES, contents, jsonl, made, parquet, titled


@pytest.mark.parametrize("write", [jsonl, parquet])
@pytest.mark.parametrize("layout", [contents, titled])
def test_every_kind_of_corpus_holds_the_same_passages(
    write: Callable[..., Any], layout: Callable[..., Any], tmp_path: Path
) -> None:
    suffix = {jsonl: ".jsonl", parquet: ".parquet"}[write]
    path = write(tmp_path / f"wiki{suffix}", [layout(passage) for passage in PASSAGES])
    assert list(read_corpus(path)) == PASSAGES


@pytest.mark.parametrize(
    ("row", "passage"),
    [
        ({"contents": '"A "B" C"\nText'}, Passage('A "B" C', "Text")),
        ({"contents": "Title\nText\nmore"}, Passage("Title", "Text\nmore")),
        ({"contents": "only a text"}, Passage("", "only a text")),
        ({"contents": '"\nText'}, Passage('"', "Text")),
        ({"title": " A \n B ", "text": " Text "}, Passage("A B", "Text")),
        ({"title": '"Heroes"', "text": ""}, Passage('"Heroes"', "")),
        ({"title": None, "contents": '"A"\nb'}, Passage("A", "b")),
    ],
)
def test_titles_and_texts_of_rows(row: dict[str, str], passage: Passage) -> None:
    assert as_passage(row) == passage


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", "{path}: holds no passages"),
        (b"\n \n", "{path}: holds no passages"),
        (b'{"contents": "a"}\n{"contents": \n', "{path}, line 2: not JSON: Expecting value, column 13"),
        (b'{"contents": "a"}\n\n{"contents": "\xff"}\n', "{path}, line 3: not UTF-8"),
        (b'["a"]', "{path}, line 1: not an object with keys"),
        (
            b'{"id": "0", "body": "a"}',
            """{path}, line 1: neither "title" and "text" nor "contents" with text in them, but 'id', 'body'""",
        ),
        (
            b'{"title": 7, "text": "a"}',
            '{path}, line 1: neither "title" and "text" nor "contents" with text in them, but',
        ),
        (b'{"contents": "\\ud800"}', "{path}, line 1: half of a surrogate pair, which is no character"),
        (b"[" * 100_000, "{path}, line 1: nested too deeply"),
    ],
)
def test_a_bad_corpus_is_named_with_the_line(content: bytes, error: str, tmp_path: Path) -> None:
    path = tmp_path / "wiki.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        open_index(WikiConfig(corpus=str(path)), lambda line: None)
    assert str(raised.value).startswith("corpus " + error.format(path=path))
    assert made(tmp_path / "wiki.jsonl.index") == []


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_a_corpus_may_have_a_byte_order_mark_and_be_packed(tmp_path: Path, encoding: str) -> None:
    data = '{"title": "Größe", "text": "a"}\n'.encode(encoding)
    (tmp_path / "wiki.JSONL").write_bytes(data)
    (tmp_path / "wiki.jsonl.gz").write_bytes(gzip.compress(data))
    for path in tmp_path.iterdir():
        assert list(read_corpus(path)) == [Passage("Größe", "a")]


def test_a_bad_parquet_file_is_named_with_the_row(tmp_path: Path) -> None:
    path = parquet(tmp_path / "wiki.parquet", [{"contents": "a"}, {"contents": "b"}])
    pq.write_table(pa.table({"title": ["a", "b", None], "text": ["a", "b", "c"]}), path)
    with pytest.raises(UserError, match=re.escape(f"corpus {path}, row 3: neither")):
        list(read_corpus(path))
    pq.write_table(pa.table({"body": ["a"]}), path)
    with pytest.raises(UserError, match=rf"^corpus {path}, row 1: neither .* but 'body'$"):
        list(read_corpus(path))
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(UserError, match=re.escape(f"corpus {path}, after row 0: ")):
        list(read_corpus(path))


def test_a_missing_corpus_and_an_unknown_kind_are_named(tmp_path: Path) -> None:
    for name, error in (("no.jsonl", "No such file"), ("wiki.csv", "neither in .jsonl nor in .parquet")):
        with pytest.raises(UserError, match=f"{name}: .*{error}"):
            list(read_corpus(tmp_path / name))
    with pytest.raises(UserError, match=r"no\.jsonl: No such file"):
        open_index(WikiConfig(corpus=str(tmp_path / "no.jsonl")))


def test_passages_are_read_one_by_one_and_by_several_threads(tmp_path: Path) -> None:
    written = [Passage(f"Title {i}", f"täxt {i}\n" * (i % 7)) for i in range(500)]
    write_passages(written, tmp_path)
    passages = Passages(tmp_path)
    assert len(passages) == 500
    assert list(passages) == written
    wrong: list[int] = []

    def read(seed: int) -> None:
        rows = np.random.default_rng(seed).integers(500, size=500)
        wrong.extend(row for row in rows if passages[row] != written[row])

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    for row in (-1, 500):
        with pytest.raises(IndexError):
            passages[row]
