"""Entries of registries for the length of a test."""

from typing import TypeVar

import pytest

from coa.registry import Registry

T = TypeVar("T")


def lend(monkeypatch: pytest.MonkeyPatch, registry: Registry[T], name: str, entry: T) -> None:
    """Puts the entry under the name, in another one's place too, until the test ends."""
    monkeypatch.setitem(registry._entries, name, entry)
