"""Reads rows, lazily, from a file, a folder with a data set, or the Hugging Face hub."""

import csv
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from coa.errors import UserError
from coa.storage.texts import lines, suffix_of, unreadable
from coa.tasks.published.benchmark import Hub
from coa.tasks.published.item import BadRow, Row, brief, once, repeated

if TYPE_CHECKING:
    import pyarrow

SEPARATORS = ",;\t|"
MISSING = frozenset({"nan", "NaN", "NaT", "<NA>"})
"""Texts that pandas writes for a missing value."""
_GAP = re.compile(r"[\s,]*+")
_SHARD = re.compile(r"-\d+-of-\d+.*$")


@dataclass(frozen=True, slots=True)
class Location:
    """Where a row comes from, for messages: `tasks.jsonl, line 3`."""

    path: Path
    unit: str
    number: int
    """Number of the line or row, from 1."""

    def error(self, why: str) -> UserError:
        return UserError(f"{self.path}, {self.unit} {self.number}: {why}")


Rows = Iterator[tuple[Location, Row]]


def read_rows(path: Path, hub: Hub | None = None) -> Rows:
    """The rows of a file, or of a folder: one that `save_to_disk` wrote, or a copy of the data set `hub`.

    Raises UserError, one line that names the file and, if known, the line or row.
    """
    if not path.is_dir():
        yield from _file(path)
    elif (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        yield from _saved(path, hub)
    else:
        for file in _files(path, hub):
            yield from _file(file)


def fetch(hub: Hub) -> Path:
    """A folder with the data set's files, downloaded from the hub unless they are cached; raises UserError."""
    from huggingface_hub import snapshot_download  # slow to import
    from huggingface_hub.errors import EntryNotFoundError, GatedRepoError
    from huggingface_hub.utils import logging

    logging.set_verbosity_error()  # each retry would print a line
    try:
        return Path(snapshot_download(hub.id, repo_type="dataset", allow_patterns=list(hub.files)))
    except GatedRepoError as error:
        raise UserError(f"{hub.id} is gated: ask for access on its page, and log in (`hf auth login`)") from error
    except (OSError, EntryNotFoundError) as error:
        why = str(error).partition("\n")[0]
        raise UserError(f"{hub.id} can't be fetched from Hugging Face (NAME=PATH reads a copy): {why}") from error


def _file(path: Path) -> Rows:
    if suffix_of(path) not in READERS:
        raise UserError(f"{path}: tasks come in files that end in {', '.join(READERS)}, and in folders of those")
    yield from READERS[suffix_of(path)](path)


def _json_lines(path: Path) -> Rows:
    for number, line in enumerate(lines(path), start=1):
        if line.strip():
            location = Location(path, "line", number)
            yield location, _object(_parse_json(line.rstrip(), path, location), location)


def _json_array(path: Path) -> Rows:
    text = "".join(lines(path))
    rows = _parse_json(text, path)
    if not isinstance(rows, list):
        raise UserError(
            f"{path}: not a JSON array of tasks, but {brief(rows)}; one object per line goes into a .jsonl file"
        )
    for number, row in enumerate(rows, start=1):
        location = Location(path, "row", number)
        yield location, _object(row, location)


def _parquet(path: Path) -> Rows:
    import pyarrow  # slow to import
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield from _tables(path, file.iter_batches(batch_size=256))
    except pyarrow.ArrowException as error:
        raise UserError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: a text in it is not UTF-8: {error.object!r:.40}") from error
    except OSError as error:
        raise unreadable(path, error) from error


def _separated(path: Path, separator: str) -> Rows:
    """The rows of a table, by the names in its first line. Rows without any value are left out."""
    csv.field_size_limit(sys.maxsize)
    table = csv.reader(lines(path), delimiter=separator, strict=True)
    try:
        rows = filter(None, table)
        columns = _columns(next(rows, []), path, separator)
        for number, fields in enumerate(rows, start=1):
            location = Location(path, "row", number)
            if any(fields[len(columns) :]):
                raise location.error(
                    f"{len(fields)} fields, but {len(columns)} columns ({', '.join(columns)}): put quotes around a "
                    f"field that has {separator!r} in it"
                )
            row = {name: _cell(field) for name, field in zip(columns, fields, strict=False) if name and field}
            if any(map(str.strip, fields)):
                yield location, row
    except csv.Error as error:
        raise UserError(f"{path}, line {table.line_num}: not CSV: {error}") from error


def _columns(names: Sequence[str], path: Path, separator: str) -> Sequence[str]:
    """The names of a table's columns; raises UserError if one has several columns, or if there is only one because
    another character separates them."""
    if (twice := repeated(filter(None, names))) is not None:
        raise UserError(f"{path}: two columns are called {twice!r}")
    other = [one for one in SEPARATORS if len(names) == 1 and one in names[0]]
    if other:
        raise UserError(
            f"{path}: one column, {names[0]!r}, whose name has {other[0]!r} in it: separate columns by {separator!r}"
        )
    return names


def _cell(field: str) -> object:
    """The value of a field: NaN if pandas writes a missing value so, else the text."""
    return math.nan if field in MISSING else field


def _saved(path: Path, hub: Hub | None) -> Rows:
    """The rows of a saved `Dataset`, or of a `DatasetDict`'s split: the one that the hub names, or the only one."""
    import datasets  # slow to import

    try:
        found = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"{path}: not a data set that `save_to_disk` wrote: {str(error).splitlines()[0]}") from error
    if isinstance(found, datasets.DatasetDict):
        split = hub.split if hub and hub.split in found else next(iter(found)) if len(found) == 1 else None
        if split is None:
            raise UserError(f"{path}: which split? It has {', '.join(map(str, found))}: give the folder of one of them")
        found = found[split]
    yield from _tables(path, found.with_format("arrow").iter(256))  # the Arrow format does not decode images


def _tables(path: Path, tables: Iterable["pyarrow.RecordBatch | pyarrow.Table"]) -> Rows:
    number = 0
    for table in tables:
        for row in table.to_pylist():
            number += 1
            yield Location(path, "row", number), {key: value for key, value in row.items() if value is not None}


def _files(folder: Path, hub: Hub | None) -> Sequence[Path]:
    """The parts of a folder's data set: the files that match the hub's patterns, else those of its split, else the only
    data file.

    Raises UserError if there is none, or more than one.
    """
    every = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if suffix_of(path) in READERS)
    wanted = [*hub.files, f"*{hub.split}*", "*"] if hub else ["*"]
    found = next(filter(None, ([path for path in every if fnmatch(path, pattern)] for pattern in wanted)), [])
    if not found:
        raise UserError(f"{folder}: no file in it that ends in {', '.join(READERS)}")
    if len({_SHARD.sub("", path) for path in found}) > 1:
        raise UserError(f"{folder}: which file? It has {', '.join(found[:5])}{' and more' * (len(found) > 5)}")
    return [folder / path for path in found]


def _parse_json(text: str, path: Path, location: Location | None = None) -> object:
    """location: the line that the text is, if it is one line of a file."""
    try:
        return json.loads(text, object_pairs_hook=once)
    except BadRow as error:
        raise (location or Location(path, "row", _rows_before_repeated(text) + 1)).error(str(error)) from error
    except json.JSONDecodeError as error:
        hint = ""
        if location is None and error.msg == "Extra data" and text.lstrip().startswith("{"):
            hint = "; one object per line goes into a .jsonl file"
        elif location is not None and location.number == 1 and text.startswith("["):
            hint = "; a JSON array goes into a .json file"
        location = location or Location(path, "line", error.lineno)
        raise location.error(f"not JSON: {error.msg} at column {error.colno}{hint}") from error
    except (ValueError, RecursionError) as error:  # a number with too many digits, brackets nested too deeply
        why = f"can't be read: {str(error).partition(';')[0]}"
        raise location.error(why) if location else UserError(f"{path}: {why}") from error


def _rows_before_repeated(text: str) -> int:
    """The number of a JSON array's elements before the first that has a key twice."""
    decoder, at, count = json.JSONDecoder(object_pairs_hook=once), text.find("[") + 1, 0
    with suppress(BadRow, ValueError):
        while True:
            _, at = decoder.raw_decode(text, _GAP.match(text, at).end())  # type: ignore[union-attr]
            count += 1
    return count


def _object(row: object, location: Location) -> Row:
    if not isinstance(row, dict):
        raise location.error(f"not a JSON object, but {brief(row)}")
    return row


TABLES: Mapping[str, Callable[[Path], Rows]] = {
    ".csv": partial(_separated, separator=","),
    ".tsv": partial(_separated, separator="\t"),
}
"""The readers of tables in which every field is a text."""
READERS: Mapping[str, Callable[[Path], Rows]] = {
    ".jsonl": _json_lines,
    ".json": _json_array,
    ".parquet": _parquet,
    **TABLES,
}
"""The readers of files, by the ending of the name."""
