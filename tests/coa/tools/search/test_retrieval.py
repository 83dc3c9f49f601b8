import fcntl
import json
import math
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coa.errors import UserError
from coa.tools.layouts import Passage
from coa.tools.search.bm25 import K1, B, open_bm25, words_of
from coa.tools.search.corpus import read_corpus
from tests.support.corpora import PASSAGES, contents, jsonl, made, store_of, titled, titles


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "wiki.jsonl", [contents(passage) for passage in PASSAGES])


def test_words_are_found_whatever_their_case_accents_and_endings() -> None:
    assert words_of("english")("The Curie\u2019s Élysée 8, in \uff34okyo; owners OWN") == (
        ["curi", "elyse", "8", "tokyo", "owner", "own"]
    )
    assert words_of("french")("été chevaux") == ["cheval"]
    assert words_of("")("The Curie's 8") == ["the", "curie", "8"]
    with pytest.raises(UserError, match="no stop words and stemmer for the language 'klingon'"):
        words_of("klingon")


def bm25(texts: list[list[str]], query: list[str]) -> list[float]:
    """The formula as Lucene has it (https://cs.uwaterloo.ca/~jimmylin/publications/Kamphuis_etal_ECIR2020_preprint.pdf,
    "Lucene (accurate)")."""
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for words in texts:
        score = 0.0
        for word in query:
            having = sum(word in other for other in texts)
            frequency = Counter(words)[word]
            idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            score += idf * frequency / (frequency + K1 * (1 - B + B * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["mayor of Arden", "berg", "who founded the company in arden", "idea berg berg"])
def test_scores_are_those_of_the_formula(query: str, corpus: Path) -> None:
    words = words_of("english")
    scores = bm25([words(f"{passage.title} {passage.text}") for passage in PASSAGES], words(query))
    ranked = sorted((row for row, score in enumerate(scores) if score), key=lambda row: -scores[row])
    found = open_bm25(store_of(corpus), "english").search(query, 10)
    assert titles(found) == [PASSAGES[row].title for row in ranked]
    assert [passage.score for passage in found] == pytest.approx([scores[row] for row in ranked], rel=1e-5)
    assert [replace(passage, score=0.0) for passage in found] == [PASSAGES[row] for row in ranked]


def test_rankings(corpus: Path) -> None:
    index = open_bm25(store_of(corpus), "english")
    assert titles(index.search("mayor of arden", 3)) == ["Arden", "Berg", "Vexon Labs"]
    assert titles(index.search("mayor of arden", 1)) == ["Arden"]
    assert titles(index.search("Malcolm X", 3)) == ["Malcolm X"]
    assert titles(index.search("ELAN", 3)) == ["Élan"]
    assert index.search("the of and", 3) == []
    assert index.search("zyx", 3) == []
    assert index.search("", 3) == []


def test_of_equal_passages_the_earlier_is_the_better(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "wiki.jsonl", [{"title": f"T{i}", "text": "same words"} for i in range(40)])
    assert titles(open_bm25(store_of(path), "english").search("same", 12)) == [f"T{i}" for i in range(12)]


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_a_corpus_without_a_word_is_searched_in_vain(tmp_path: Path) -> None:
    index = open_bm25(store_of(jsonl(tmp_path / "wiki.jsonl", [{"contents": "the"}, {"contents": "..."}])), "english")
    assert index.search("the word", 3) == []


def test_an_index_is_mapped_and_not_read(corpus: Path) -> None:
    index = open_bm25(store_of(corpus), "english")
    mapped = Path("/proc/self/maps").read_text()
    folder = str(corpus.with_name("index"))
    for name in ("data.csc.index.npy", "indices.csc.index.npy", "indptr.csc.index.npy", "offsets.npy"):
        assert re.search(rf"{re.escape(folder)}/.*/{re.escape(name)}", mapped), name
    assert titles(index.search("activist", 3)) == ["Malcolm X"]


def test_an_index_is_built_once_and_used_again(corpus: Path) -> None:
    said: list[str] = []
    open_bm25(store_of(corpus, said), "english")
    folder = corpus.with_name("index")
    assert [line for line in said if "building" in line] == [
        f"wiki.jsonl: building {path}" for kind in ("passages", "bm25") for path in folder.glob(f"{kind}-*")
    ]
    records = {
        kind: json.loads(next(folder.glob(f"{kind}-*/made_from.json")).read_text()) for kind in ("passages", "bm25")
    }
    stat = corpus.stat()
    assert records["passages"]["corpus"] == (
        {"name": "wiki.jsonl", "bytes": stat.st_size, "mtime_ns": stat.st_mtime_ns}
    )
    assert records["bm25"]["language"] == "english"
    # A mark in what was built: only an index that is not built again shows it.
    text = next(folder.glob("passages-*/passages.txt"))
    text.write_bytes(text.read_bytes().replace(b"activist", b"MARKED!!"))
    said.clear()
    assert open_bm25(store_of(corpus, said), "english").search("activist", 3)[0].text == "Malcolm X was an MARKED!!."
    assert said == []


def test_another_corpus_is_another_index_and_the_outdated_one_goes(corpus: Path) -> None:
    store = store_of(corpus)
    before = open_bm25(store, "english")
    jsonl(corpus, [titled(Passage("New", "an activist"))])
    assert titles(open_bm25(store, "english").search("activist", 3)) == ["New"]
    assert made(store.folder) == ["bm25", "passages"]
    assert titles(before.search("activist", 3)) == ["Malcolm X"]  # whoever has it open keeps it


def test_a_corpus_of_the_same_size_is_known_by_its_time(corpus: Path) -> None:
    store = store_of(corpus)
    open_bm25(store, "english")
    time_ns = corpus.stat().st_mtime_ns
    corpus.write_bytes(corpus.read_bytes().replace(b"activist", b"opponent"))
    os.utime(corpus, ns=(time_ns, time_ns + 1))
    assert titles(open_bm25(store, "english").search("opponent", 3)) == ["Malcolm X"]


def test_a_corpus_that_was_only_touched_is_read_again_and_its_index_stays(corpus: Path) -> None:
    said: list[str] = []
    store = store_of(corpus, said)
    open_bm25(store, "english")
    said.clear()
    os.utime(corpus, ns=(0, 0))
    assert titles(open_bm25(store, "english").search("activist", 3)) == ["Malcolm X"]
    assert said == [f"wiki.jsonl: building {next(store.folder.glob('passages-*'))}"]
    said.clear()
    first, second, *others = PASSAGES
    joined = Passage(first.title, f"{first.text}{second.title}\n{second.text}")
    jsonl(corpus, [titled(passage) for passage in (joined, *others)])  # the same bytes, in other passages
    open_bm25(store, "english")
    assert sum("building" in line for line in said) == 2


def test_another_language_or_version_is_another_index_of_the_same_passages(
    corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(corpus)
    open_bm25(store, "english")
    assert titles(open_bm25(store, "").search("the", 3)) == ["Berg"]
    monkeypatch.setattr("coa.tools.search.bm25.version", lambda package: "99")
    open_bm25(store, "")
    assert made(store.folder) == ["bm25", "bm25", "bm25", "passages"]


def test_a_half_built_index_is_never_used(corpus: Path) -> None:
    store = store_of(corpus)
    passages = store.passages()

    def dies(folder: Path) -> None:
        (folder / "half").write_text("of it")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.index("bm25", passages, {}, dies)
    assert made(store.folder) == ["passages"]
    killed = store.folder / ".bm25-0000.partial"  # as left by a process that could not tidy up
    killed.mkdir()
    (killed / "half").touch()
    folder = store.index("bm25", passages, {}, lambda folder: (folder / "whole").touch())
    assert sorted(path.name for path in folder.iterdir()) == ["made_from.json", "whole"]
    assert list(store.folder.glob("*partial")) == []


def test_a_corpus_that_changes_while_it_is_read_is_refused(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def growing(path: Path) -> Any:
        yield from read_corpus(path)
        path.write_text(path.read_text() + json.dumps(titled(Passage("Late", "too late"))))

    monkeypatch.setattr("coa.tools.search.store.read_corpus", growing)
    with pytest.raises(UserError, match="changed while it was read"):
        store_of(corpus).passages()


def test_an_index_folder_that_cannot_be_written_is_named(corpus: Path) -> None:
    corpus.with_name("index").write_text("a file")
    with pytest.raises(UserError, match=r"index folder .*index: File exists"):
        store_of(corpus).passages()


OPENS = """
import sys
from pathlib import Path
from coa.tools.search.bm25 import open_bm25
from coa.tools.search.store import Store
from coa.grading.toolset import ToolsConfig, standard_tools

corpus = Path(sys.argv[1])
index = open_bm25(Store(corpus, corpus.with_name("index"), lambda line: print(line, flush=True)), "english")
print("found", [passage.title for passage in index.search("mayor", 3)])
"""


def test_of_two_processes_one_builds_and_the_other_waits(corpus: Path) -> None:
    folder = corpus.with_name("index")
    folder.mkdir()
    with (folder / "passages.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        processes = [
            subprocess.Popen([sys.executable, "-c", OPENS, str(corpus)], stdout=subprocess.PIPE, text=True)
            for _ in range(2)
        ]
        for process in processes:  # both are at the door before it opens
            assert process.stdout is not None
            assert process.stdout.readline() == "wiki.jsonl: waiting for another process that builds passages\n"
    said = [process.communicate(timeout=60)[0].splitlines() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [lines[-1] for lines in said] == ["found ['Arden', 'Berg']"] * 2
    built = Counter(line.split("/")[-1].partition("-")[0] for lines in said for line in lines if "building" in line)
    assert built == {"passages": 1, "bm25": 1}


def test_a_long_build_says_how_far_it_is(corpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coa.tools.search.store.SAY_EVERY_S", -1.0)
    said: list[str] = []
    list(store_of(corpus, said).count([1, 2, 3], "passages read"))
    assert said == [f"wiki.jsonl: {count} passages read, 0 s" for count in range(3)]
