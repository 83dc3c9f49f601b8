"""A JSON array of objects, read one by one: a file of half a gigabyte need not fit in memory."""

import json
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any, TextIO

from coa.errors import UserError

CHUNK_CHARS = 1 << 20
MAX_ITEM_CHARS = 1 << 26
"""Of one object; a longer one is taken for broken JSON."""


def read_array(path: Path) -> Iterator[dict[str, Any]]:
    """Raises UserError, one line that names the file, for anything else than an array of objects."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from _items(_Window(file, path))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 text") from error


class _Window:
    """The part of a file that is not yet read: what was taken is forgotten."""

    def __init__(self, file: TextIO, path: Path) -> None:
        self._file, self._path = file, path
        self._text, self._at = "", 0
        self._decoder = json.JSONDecoder()

    def peek(self) -> str:
        """The next character that is not white space; empty at the end."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in " \t\r\n":
                self._at += 1
            if self._at < len(self._text) or not self._more():
                return self._text[self._at : self._at + 1]

    def skip(self) -> None:
        self._at += 1

    def item(self) -> dict[str, Any]:
        while True:
            try:
                item, self._at = self._decoder.raw_decode(self._text, self._at)
                return item
            except (ValueError, RecursionError) as error:  # broken, or not all of it is there yet
                if len(self._text) - self._at > MAX_ITEM_CHARS or not self._more():
                    raise self.error(f"not JSON: {getattr(error, 'msg', error)}") from error

    def error(self, why: str) -> UserError:
        return UserError(f"{self._path}: {why}")

    def _more(self) -> bool:
        # As much again as is waiting: an object that spans many chunks is not parsed once a chunk.
        chunk = self._file.read(max(CHUNK_CHARS, len(self._text) - self._at))
        self._text, self._at = self._text[self._at :] + chunk, 0
        return bool(chunk)


def _items(window: _Window) -> Iterator[dict[str, Any]]:
    if window.peek() != "[":
        raise window.error("not a JSON array")
    window.skip()
    if window.peek() == "]":
        return
    for number in count(1):
        if window.peek() != "{":
            raise window.error(f"row {number} is not a JSON object")
        yield window.item()
        separator = window.peek()
        window.skip()
        if separator == "]":
            return
        if separator != ",":
            raise window.error(f"cut off after row {number}" if not separator else f"no comma after row {number}")
