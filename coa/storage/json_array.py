"""A JSON array of objects, read one by one: a file of half a gigabyte need not fit in memory."""

import codecs
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import IO, Any

import ijson

from coa.errors import UserError


def read_array(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in order; a number with a fraction is a `Decimal`.

    Raises UserError, one line that names the file, for anything else than an array of objects.
    """
    try:
        with path.open("rb") as file:
            yield from _objects(file, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _objects(file: IO[bytes], path: Path) -> Iterator[dict[str, Any]]:
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    events, count = ijson.parse(file), 0
    try:
        first = next(events)
        if first[1] != "start_array":
            raise UserError(f"{path}: not a JSON array")
        for count, item in enumerate(ijson.items(chain([first], events), "item"), start=1):
            if not isinstance(item, dict):
                raise UserError(f"{path}: row {count} is not a JSON object")
            yield item
    except ijson.JSONError as error:
        [why] = error.args
        line = (why.decode(errors="replace") if isinstance(why, bytes) else why).partition("\n")[0]
        raise UserError(f"{path}: not JSON after row {count}: {line}") from error
