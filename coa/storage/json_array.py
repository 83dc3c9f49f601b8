"""A JSON array of objects, read one by one: a file of half a gigabyte need not fit in memory."""

import codecs
import json
from collections.abc import Iterable, Iterator
from decimal import Decimal
from itertools import chain
from pathlib import Path
from typing import IO

import ijson

from coa.errors import UserError
from coa.json_object import Json

_Event = tuple[str, str, object]


def read_array(path: Path) -> Iterator[Json]:
    """The objects in order.

    Raises UserError, one line that names the file, for anything else than an array of objects.
    """
    try:
        with path.open("rb") as file:
            yield from _objects(file, path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error


def _objects(file: IO[bytes], path: Path) -> Iterator[Json]:
    if file.read(len(codecs.BOM_UTF8)) != codecs.BOM_UTF8:
        file.seek(0)
    events, count = _checked(map(_with_floats, ijson.parse(file)), path), 0
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


def _checked(events: Iterable[_Event], path: Path) -> Iterator[_Event]:
    """The events; raises UserError for an object that has a key twice, of which ijson would keep the last value."""
    opened: list[set[object]] = []
    row = 0
    for event in events:
        _, kind, value = event
        if kind == "start_map":
            row += not opened
            opened.append(set())
        elif kind == "end_map":
            opened.pop()
        elif kind == "map_key":
            if value in opened[-1]:
                raise UserError(f"{path}, row {row}: the key {json.dumps(value)} is there twice")
            opened[-1].add(value)
        yield event


def _with_floats(event: _Event) -> _Event:
    """An event of ijson, which reads numbers with a fraction as `Decimal`: its own floats have no large integers."""
    prefix, kind, value = event
    return prefix, kind, float(value) if isinstance(value, Decimal) else value
