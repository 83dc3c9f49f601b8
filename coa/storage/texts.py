"""Text files that a user brings: their lines, whatever their encoding and with or without a byte-order mark."""

import gzip
import zlib
from collections.abc import Iterator
from difflib import get_close_matches
from io import TextIOWrapper
from itertools import islice
from json import detect_encoding
from pathlib import Path

from coa.errors import UserError

PACKED = ".gz"
"""How the name of a compressed file ends."""
_MARK = "\ufeff"
_SHOWN = 10
"""Number of characters that are shown before and after one that can't be read."""
_NAMES = 1000
"""Maximum number of names among which the nearest is searched."""


def lines(path: Path, name: str = "") -> Iterator[str]:
    """The lines of a file, with their ends, unpacked if its name ends in `.gz`: UTF-8, or UTF-16 or UTF-32 if its first
    bytes say so. Byte-order marks at the beginning of a line are left out; files that were joined have several.

    Raises UserError, which names the file (by `name`, if given) and, if known, the line.
    """
    name, number = name or str(path), 0
    try:
        with gzip.open(path, "rb") if _packed(path) else path.open("rb") as file:
            encoding = detect_encoding(file.peek(4)[:4])
            # Bytes that are no characters become surrogates, so that their line can be named.
            with TextIOWrapper(file, encoding, errors="surrogateescape", newline="") as text:
                for number, line in enumerate(text, start=1):
                    _check(line, f"{name}, line {number}")
                    yield line.lstrip(_MARK)
    except UnicodeDecodeError as error:
        raise UserError(f"{name}, line {number + 1}: not {error.encoding} text: save it as UTF-8") from error
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{name}: can't be unpacked: {error}") from error
    except OSError as error:
        raise unreadable(path, error, name) from error


def unreadable(path: Path, error: OSError, name: str = "") -> UserError:
    """The error of a file that can't be opened, with the nearest name in its folder if it is missing."""
    why = (error.strerror or str(error)).partition("\n")[0]
    near: list[str] = []
    if not path.exists() and path.parent.is_dir():
        near = get_close_matches(path.name, [one.name for one in islice(path.parent.iterdir(), _NAMES)], n=1)
    return UserError(f"{name or path}: cannot be read: {why}{''.join(f'; there is {one}' for one in near)}")


def stem_of(path: Path) -> str:
    """The file's name without its endings: "tasks" of tasks.jsonl.gz."""
    return _unpacked(path).stem


def suffix_of(path: Path) -> str:
    """The ending that says what the file holds, in lower case: ".jsonl" of Tasks.JSONL.gz."""
    return _unpacked(path).suffix.lower()


def _packed(path: Path) -> bool:
    return path.suffix.lower() == PACKED


def _unpacked(path: Path) -> Path:
    return path.with_suffix("") if _packed(path) else path


def _check(line: str, where: str) -> None:
    """Raises UserError for a line with bytes that are no UTF-8."""
    try:
        line.encode()
    except UnicodeEncodeError as error:
        around = line[max(0, error.start - _SHOWN) : error.start + _SHOWN].encode(errors="surrogateescape")
        raise UserError(f"{where}: not UTF-8 text ({around!r}): save it as UTF-8") from error
