"""One row of a data set, in the common form to which all layouts are converted."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches

from coa.json_object import Json
from coa.storage.jsonl import to_json

LONGEST_SHOWN = 100
"""Maximum length of values and names in an error."""

Row = Json


class BadRow(Exception):
    """A row can't be read; the caller, which knows where the row is from, adds that to the message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A task without the settings that its benchmark adds.

    Item(question="What is 6 * 7 ?", answers=("42",), id="test_3")
    """

    question: str
    answers: tuple[str, ...]
    id: str | None = None
    """The row's id; None if rows have no id."""
    part: str = ""
    """Part of the benchmark, if results are reported by part: `level1`."""
    metadata: str = ""
    """See `coa.types.Task`."""


Reader = Callable[[Row], Item | None]
"""Reads a row; None for one that the benchmark leaves out, such as one that needs an image. Raises BadRow for a row
that can't be read."""


def repeated(names: Iterable[str]) -> str | None:
    """The first name that is there twice; None if there is none."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def once(pairs: Sequence[tuple[str, object]]) -> Row:
    """A JSON object; raises BadRow if it has a key twice, of which `json` would keep the last value."""
    row = dict(pairs)
    if len(row) < len(pairs):
        raise BadRow(f"the key {brief(repeated(key for key, _ in pairs))} is there twice")
    return row


def missing(value: object) -> bool:
    """Whether a row has no value in a column: None, or NaN as pandas writes it."""
    return value is None or (isinstance(value, float) and math.isnan(value))


def text(row: Row, *keys: str) -> str:
    """The text in the first of these columns that has one; raises BadRow if none has."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise _absent(row, keys, f"no `{keys[0]}`")


def answers(row: Row, *keys: str) -> tuple[str, ...]:
    """The accepted answers in the first of these columns that the row has: a text, a number or a list of them."""
    value = next((row[key] for key in keys if not missing(row.get(key))), None)
    aliases = value if isinstance(value, list) else [value]
    texts = tuple(map(_answer, aliases))
    if not texts or not all(texts):
        raise _absent(row, keys, f"no `{keys[0]}`: a text, or a list of accepted texts")
    return texts


def _answer(value: object) -> str:
    """An accepted answer as a text; empty for anything but a text or a finite number."""
    match value:
        case bool():
            return ""
        case str():
            return value.strip()
        case float() if not math.isfinite(value):
            return ""
        case Decimal() if value.is_finite():
            return f"{value:f}"
        case int() | float():
            return str(value)
        case _:
            return ""


def _absent(row: Row, keys: Sequence[str], said: str) -> BadRow:
    """The error of a row without a usable value in these columns: it shows the value, or the columns that there are and
    the one with the nearest name."""
    if found := [key for key in keys if key in row]:
        return BadRow(f"{said}; `{found[0]}` is {brief(row[found[0]])}")
    columns = {name.strip().casefold(): name for name in row}
    near = next((close for key in keys for close in get_close_matches(key, columns, n=1)), None)
    nearest = f", of which {columns[near]!r} is the nearest" if near is not None else ""
    return BadRow(f"{said}; the row has {_cut(', '.join(map(repr, row))) or 'no value'}{nearest}")


def brief(value: object) -> str:
    """A value as JSON, as an error shows it: cut, and of an object only the keys."""
    if isinstance(value, dict):
        return f"an object with {_cut(', '.join(map(repr, value))) or 'no keys'}"
    return _cut(json.dumps(value, ensure_ascii=False, default=str))


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def called(row: Row, *keys: str) -> str | None:
    """The row's id, or another name, from the first of these columns that it has."""
    return next((str(row[key]) for key in keys if not missing(row.get(key))), None)


def plain(row: Row) -> Item:
    """{"question": .., "answer": a text or accepted texts, "id": .., "metadata": ..}: the layout of a user's own
    file."""
    given = row.get("metadata")
    metadata = "" if missing(given) else given if isinstance(given, str) else to_json(given)
    return Item(question=text(row, "question"), answers=answers(row, "answer"), id=called(row, "id"), metadata=metadata)
