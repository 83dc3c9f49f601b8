"""Reads files of other systems: JSON, or JSONL line by line."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coa.distill.sources.messages import json_in
from coa.errors import UserError

JSONL, JSON, PARQUET, CSV = ".jsonl", ".json", ".parquet", ".csv"


def files(path: Path, *endings: str) -> list[Path]:
    """The file, or the folder's files with one of the endings, sorted by name; raises UserError if there is none."""
    if path.is_dir():
        found = sorted(file for file in path.iterdir() if file.suffix in endings)
        if not found:
            raise UserError(f"{path}: no {' or '.join(endings)} file there")
        return found
    if not path.is_file():
        raise UserError(f"{path}: no such file or folder")
    return [path]


def records(file: Path) -> Iterator[tuple[str, Any]]:
    """Yields the place of each record, for messages, and the record; None for a record that is not JSON."""
    if file.suffix != JSONL:
        yield str(file), json_in(file.read_bytes())
        return
    with file.open("rb") as opened:
        for number, line in enumerate(opened, start=1):
            if line.strip():
                yield f"{file}, line {number}", json_in(line)
