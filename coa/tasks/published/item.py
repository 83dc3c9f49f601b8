"""One row of a data set, in the common form to which all layouts are converted."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

Row = dict[str, Any]


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


Reader = Callable[[Row], Item | None]
"""Reads a row; None for one that the benchmark leaves out, such as one that needs an image. Raises BadRow for a row
that can't be read."""


def text(row: Row, *keys: str) -> str:
    """The text in the first of these columns that has one; raises BadRow if none has."""
    for key in keys:
        value = row.get(key)
        if isinstance(value, str) and value.strip():
            return value.strip()
    raise BadRow(f"no `{keys[0]}`")


def answers(row: Row, *keys: str) -> tuple[str, ...]:
    """The accepted answers in the first of these columns that the row has: a text, a number or a list of them."""
    key = next((key for key in keys if row.get(key) is not None), keys[0])
    value = row.get(key)
    aliases = value if isinstance(value, list) else [value]
    texts = tuple(str(alias).strip() for alias in aliases if type(alias) in (str, int, float))
    if len(texts) < len(aliases) or not texts or not all(texts):
        raise BadRow(f"no `{key}`: a text, or a list of accepted texts")
    return texts


def called(row: Row, *keys: str) -> str | None:
    """The row's id, from the first of these columns that it has."""
    return next((str(row[key]) for key in keys if row.get(key) is not None), None)


def plain(row: Row) -> Item:
    """{"question": .., "answer": a text or accepted texts, "id": ..}: the layout of a user's own file."""
    return Item(question=text(row, "question"), answers=answers(row, "answer"), id=called(row, "id"))
