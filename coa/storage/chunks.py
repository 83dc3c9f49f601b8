"""Cuts streams into lists."""

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Yields lists of up to `size` items: `list(chunks("abcde", 2)) == [["a", "b"], ["c", "d"], ["e"]]`"""
    rest = iter(items)
    while chunk := list(islice(rest, size)):
        yield chunk
