"""JSON lines files that stay readable after a crash: one value per line, appended by one process at a time.

A killed process or a full disk may leave an incomplete last line: a torn tail. It counts as not written: readers skip
it, and the next append removes it (or, with `keep_torn`, ends it as evidence).
"""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from coa.errors import UserError
from coa.storage.files import room_at, write_atomically

Default = Callable[[object], object]
"""Converts a value that JSON does not support, as for `json.dumps`."""
_BLOCK = 1 << 16


def to_json(value: object, *, default: Default | None = None, indent: int | None = None) -> str:
    """The value as JSON that any reader takes: numbers that JSON does not have (NaN and infinities) are null."""
    try:
        return json.dumps(value, default=default, indent=indent, allow_nan=False)
    except ValueError:
        told = json.dumps(value, default=default)
        return json.dumps(json.loads(told, parse_constant=_null), indent=indent)


def _null(_: str) -> None:
    """Reads numbers that JSON does not have (NaN, Infinity) as null."""


def append_line(path: Path, value: object, *, default: Default | None = None) -> None:
    """Appends one line, which readers see as soon as this returns.

    Raises DiskFull if there is no room; a partly written line is then a torn tail.
    """
    append_text(path, to_json(value, default=default))


def append_text(path: Path, line: str, *, keep_torn: bool = False) -> None:
    """Appends a line that is JSON already. keep_torn: a torn tail is kept as a broken line of its own, not removed."""
    with room_at(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Opened for each line: no limit on the number of files, and no buffering.
        with path.open("a+b") as file:
            torn = _is_torn(file)
            if torn and not keep_torn:
                file.truncate(_end_of_last_line(file))
            file.write(b"\n" * (torn and keep_torn) + f"{line}\n".encode())


def read_lines(path: Path) -> list[Any]:
    """The values of all complete lines, a number that is not finite as None; empty if there is no file. Raises
    UserError for a line that is not JSON."""
    if not path.exists():
        return []
    values = []
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n")[:-1], start=1):
        if line:
            try:
                values.append(json.loads(line, parse_constant=_null))
            except ValueError as error:
                raise UserError(f"{path}, line {number}: not JSON: {error}") from error
    return values


def write_lines(path: Path, values: Iterable[Any]) -> None:
    """Replaces the file atomically by a file with these values."""
    write_atomically(path, "".join(f"{to_json(value)}\n" for value in values))


def _is_torn(file: IO[bytes]) -> bool:
    """Whether the file ends in the middle of a line."""
    if not file.seek(0, os.SEEK_END):
        return False
    file.seek(-1, os.SEEK_END)
    return file.read(1) != b"\n"


def _end_of_last_line(file: IO[bytes]) -> int:
    """The number of bytes up to and including the last newline; 0 if there is none."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - _BLOCK)
        file.seek(start)
        if (found := file.read(end - start).rfind(b"\n")) >= 0:
            return start + found + 1
        end = start
    return 0
