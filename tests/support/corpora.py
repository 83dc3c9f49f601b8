"""A small corpus of passages in every form, and what was built from it."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coa.tools.layouts import Passage
from coa.tools.search.store import Store

PASSAGES = [
    Passage("Arden", "Arden is a town. Its mayor is Berg."),
    Passage("Berg", "Berg is the mayor of Arden, and owns Vexon Labs."),
    Passage("Vexon Labs", "A company that was founded in Arden by Berg's sister."),
    Passage("Malcolm X", "Malcolm X was an activist."),
    Passage("Élan", "Élan vital: an idea of Bergson\nin two lines."),
]


def contents(passage: Passage) -> dict[str, str]:
    return {"id": "0", "contents": f'"{passage.title}"\n{passage.text}'}


def titled(passage: Passage) -> dict[str, str]:
    return {"id": "0", "title": passage.title, "text": passage.text}


def jsonl(path: Path, rows: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def parquet(path: Path, rows: list[dict[str, str]]) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def store_of(corpus: Path, said: list[str] | None = None) -> Store:
    return Store(corpus, corpus.with_name("index"), said.append if said is not None else lambda line: None)


def titles(found: list[Passage]) -> list[str]:
    return [passage.title for passage in found]


def made(folder: Path) -> list[str]:
    """Kinds of what lies in an index folder: ["bm25", "passages"]."""
    return sorted(path.name.partition("-")[0] for path in folder.iterdir() if path.is_dir())
