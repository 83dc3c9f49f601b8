"""Reads rows, lazily, from a file, a folder with a data set, or the Hugging Face hub."""

import csv
import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from coa.errors import UserError
from coa.tasks.published.benchmark import Hub
from coa.tasks.published.item import Row

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
    readers = {".jsonl": _json_lines, ".json": _json_array, ".parquet": _parquet, ".csv": _csv}
    if path.suffix not in readers:
        raise UserError(f"{path}: tasks come in files that end in {', '.join(readers)}, and in folders of those")
    try:
        yield from readers[path.suffix](path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {(error.strerror or str(error)).splitlines()[0]}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text (byte {error.start})") from error


def _json_lines(path: Path) -> Rows:
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                location = Location(path, "line", number)
                yield location, _object(_parse_json(line.rstrip(), path, location), location)


def _json_array(path: Path) -> Rows:
    rows = _parse_json(path.read_text(encoding="utf-8-sig"), path)
    if not isinstance(rows, list):
        raise UserError(f"{path}: not a JSON array of tasks; one object per line goes into a .jsonl file")
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


def _csv(path: Path) -> Rows:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            for number, row in enumerate(csv.DictReader(file, strict=True), start=1):
                yield Location(path, "row", number), {key: value for key, value in row.items() if key and value}
    except csv.Error as error:
        raise UserError(f"{path}: not CSV: {error}") from error


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


def _tables(path: Path, tables: Any) -> Rows:
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
    every = sorted(
        path.relative_to(folder).as_posix()
        for suffix in ("jsonl", "json", "parquet", "csv")
        for path in folder.rglob(f"*.{suffix}")
    )
    wanted = [*hub.files, f"*{hub.split}*", "*"] if hub else ["*"]
    found = next(filter(None, ([path for path in every if fnmatch(path, pattern)] for pattern in wanted)), [])
    if not found:
        raise UserError(f"{folder}: no .jsonl, .json, .parquet or .csv file in it")
    if len({_SHARD.sub("", path) for path in found}) > 1:
        raise UserError(f"{folder}: which file? It has {', '.join(found[:5])}{' and more' * (len(found) > 5)}")
    return [folder / path for path in found]


def _parse_json(text: str, path: Path, location: Location | None = None) -> Any:
    """location: the line that the text is, if it is one line of a file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        location = location or Location(path, "line", error.lineno)
        raise location.error(f"not JSON: {error.msg} at column {error.colno}") from error
    except (ValueError, RecursionError) as error:  # a number with too many digits, brackets nested too deeply
        why = f"can't be read: {error}"
        raise location.error(why) if location else UserError(f"{path}: {why}") from error


def _object(row: Any, location: Location) -> Row:
    if not isinstance(row, dict):
        raise location.error("not a JSON object")
    return row
