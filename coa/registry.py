"""Tables of things that are found by name: the project's own, and those that extensions add (`coa.extensions`)."""

import importlib
from collections.abc import Iterator, Mapping
from typing import TypeVar, cast

from coa.errors import UserError

T = TypeVar("T")


class _Lazy(str):
    """The "module:attribute" of an entry that nobody has looked at yet."""


class Registry(Mapping[str, T]):
    """Entries of one kind by name, in the order in which they were registered.

    GRADERS = Registry("grader", {"exact": grade_exact})
    GRADERS.register("close", grade_close)
    GRADERS.find("clsoe")               UserError: unknown grader 'clsoe': known are exact, close
    """

    def __init__(
        self, kind: str, entries: Mapping[str, T] | None = None, *, lazy: Mapping[str, str] | None = None
    ) -> None:
        """`kind`: what an error calls an entry, such as "grader".

        lazy: entries as "module:attribute", each imported when it is first looked at.
        """
        self.kind = kind
        self._entries: dict[str, T | _Lazy] = dict(entries or {})
        self._entries |= {name: _Lazy(where) for name, where in (lazy or {}).items()}

    def register(self, name: str, entry: T) -> None:
        """Adds an entry; raises ValueError where the name has another entry already."""
        if self._entries.setdefault(name, entry) is not entry:
            raise ValueError(f"there is a {self.kind} {name!r} already")

    def register_lazily(self, name: str, where: str) -> None:
        """Adds an entry by its "module:attribute", as in `lazy`: for an extension that needs what loads extensions.
        Raises ValueError where the name has an entry already."""
        if name in self._entries:
            raise ValueError(f"there is a {self.kind} {name!r} already")
        self._entries[name] = _Lazy(where)

    def find(self, name: str) -> T:
        """The entry of that name; raises UserError, which lists the known names."""
        if name not in self._entries:
            raise UserError(f"unknown {self.kind} {name!r}: known are {', '.join(self._entries)}")
        return self[name]

    def __getitem__(self, name: str) -> T:
        entry = self._entries[name]
        if isinstance(entry, _Lazy):
            module, _, attribute = entry.partition(":")
            self._entries[name] = entry = cast(T, getattr(importlib.import_module(module), attribute))
        return entry

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)
