"""A corpus of passages: reads its file, and stores passages on disk so that any one can be read at once.

A corpus is JSONL or Parquet with a passage in each row, in one of two common layouts; other keys are ignored:

    {"id": "0", "contents": "\\"Arden\\"\\nArden is a town ."}     the first line is the title (the wiki-18 dump)
    {"id": "0", "title": "Arden", "text": "Arden is a town ."}
"""

import hashlib
import json
import os
from array import array
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

import numpy as np

from coa.errors import ToolDown, UserError
from coa.storage.texts import lines, suffix_of, unreadable
from coa.tools.layouts import Passage

_TEXT, _OFFSETS, _DIGEST = "passages.txt", "offsets.npy", "sha256"


def read_corpus(path: Path) -> Iterator[Passage]:
    """The passages in order; raises UserError that names the file and the line (of Parquet the row, from 1)."""
    readers = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
    if suffix_of(path) not in readers:
        raise UserError(f"corpus {path}: its name ends neither in .jsonl nor in .parquet")
    empty = True
    for passage in readers[suffix_of(path)](path):
        empty = False
        yield passage
    if empty:
        raise UserError(f"corpus {path}: holds no passages")


def as_passage(row: object) -> Passage:
    """The passage in a row, or in a retriever's document; raises ValueError that says what is wrong."""
    if not isinstance(row, Mapping):
        raise ValueError("not an object with keys")
    match row:
        case {"title": str(title), "text": str(text)}:
            pass
        case {"contents": str(contents)}:
            title, titled, text = contents.partition("\n")
            title = title.strip()
            if not titled:
                title, text = "", contents
            elif len(title) > 1 and title[0] == title[-1] == '"':
                title = title[1:-1]
        case _:
            found = ", ".join(map(repr, islice(row, 10))) or "nothing"
            raise ValueError(f'neither "title" and "text" nor "contents" with text in them, but {found}')
    try:
        f"{title}{text}".encode()
    except UnicodeEncodeError as error:
        raise ValueError("half of a surrogate pair, which is no character") from error
    return Passage(" ".join(title.split()), text.strip())


def _read_jsonl(path: Path) -> Iterator[Passage]:
    for number, line in enumerate(lines(path, f"corpus {path}"), start=1):
        if line.isspace():
            continue
        try:
            yield as_passage(json.loads(line.rstrip()))
        except (ValueError, RecursionError) as error:
            raise UserError(f"corpus {path}, line {number}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    match error:
        case UnicodeDecodeError():
            return "not UTF-8"
        case json.JSONDecodeError():
            return f"not JSON: {error.msg}, column {error.colno}"
        case RecursionError():
            return "nested too deeply"
        case _:
            return str(error).partition("\n")[0]


def _read_parquet(path: Path) -> Iterator[Passage]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = 0
    try:
        with pq.ParquetFile(path) as table:
            names = table.schema_arrow.names
            # Without any of the columns, all are read, so that the error can name them.
            columns = [name for name in ("title", "text", "contents") if name in names] or names
            for batch in table.iter_batches(batch_size=1024, columns=columns):
                for values in batch.to_pylist():
                    row += 1
                    yield as_passage(values)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(f"corpus {path}, after row {row}: {_reason(error)}") from error
    except ValueError as error:
        raise UserError(f"corpus {path}, row {row}: {_reason(error)}") from error
    except OSError as error:
        raise unreadable(path, error, f"corpus {path}") from error


def write_passages(passages: Iterable[Passage], folder: Path) -> None:
    """Writes three files: the titles and texts, the offsets of the passages in that file (int64 [n + 1]), and a
    hash."""
    offsets, digest = array("q", [0]), hashlib.sha256()
    with (folder / _TEXT).open("wb") as file:
        for passage in passages:
            data = f"{passage.title}\n{passage.text}".encode()
            offsets.append(offsets[-1] + file.write(data))
            digest.update(data)
    digest.update(offsets)
    np.save(folder / _OFFSETS, np.frombuffer(offsets, np.int64))
    (folder / _DIGEST).write_text(digest.hexdigest())


class Passages:
    """Passages on disk, read one at a time, so that the time to open them does not depend on their number."""

    def __init__(self, folder: Path) -> None:
        self.sha256 = (folder / _DIGEST).read_text()
        """Hash of the passages, independent of the file that they were read from."""
        self._offsets = np.load(folder / _OFFSETS, mmap_mode="r")
        self._file = (folder / _TEXT).open("rb", buffering=0)

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __iter__(self) -> Iterator[Passage]:
        return (self[row] for row in range(len(self)))

    def __getitem__(self, row: int) -> Passage:
        """The passage of a row. Thread-safe; raises ToolDown if the file can no longer be read."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        start, end = int(self._offsets[row]), int(self._offsets[row + 1])
        try:
            data = os.pread(self._file.fileno(), end - start, start)
        except OSError as error:
            raise ToolDown(f"passage {row} of {self._file.name}: {error.strerror}") from error
        title, _, text = data.decode().partition("\n")
        return Passage(title, text)
