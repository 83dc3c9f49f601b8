"""Keeps API keys out of records: finds them in a request's headers and URL, and hides them in the texts of the call."""

import json
from collections.abc import Collection, Mapping
from typing import Any, TypeVar

T = TypeVar("T")

SHORTEST_KEY = 8
"""Minimum characters of a key that is hidden; a shorter one (`EMPTY`, `x`) is a placeholder and may be a word of the
text."""
HIDDEN = "***"
_NAMES = ("auth", "key", "token", "secret", "sig", "password", "credential")
"""Substrings of the names of headers and query parameters that hold keys."""


def keys_of(headers: Mapping[str, str], query: Mapping[str, str]) -> frozenset[str]:
    """The keys of a request: `sk-12345` for `authorization: bearer sk-12345`, `X-Goog-Api-Key: sk-12345`,
    `Cookie: session=sk-12345` or `?key=sk-12345`."""
    found: set[str] = set()
    for name, value in (*headers.items(), *query.items()):
        if name.lower() == "cookie":
            found |= {cookie.partition("=")[2].strip(' "') for cookie in value.split(";")}
        elif any(part in name.lower() for part in _NAMES):
            words = value.split()
            # The first of several words is the scheme, such as "Bearer".
            found |= set(words[1:] if "auth" in name.lower() and len(words) > 1 else [value.strip(), *words])
    return frozenset(key for key in found if len(key) >= SHORTEST_KEY)


def hidden(value: T, keys: Collection[str]) -> T:
    """A JSON value with the keys removed from its texts, at any depth; field names are unchanged."""
    root = [value]
    boxes: list[Any] = [root]
    while boxes:
        box = boxes.pop()
        for at, item in list(box.items() if isinstance(box, dict) else enumerate(box)):
            if isinstance(item, str):
                box[at] = _arguments(item, keys) if at == "arguments" else _text(item, keys)
            elif isinstance(item, dict | list):
                box[at] = item.copy()
                boxes.append(box[at])
    return root[0]


def _text(text: str, keys: Collection[str]) -> str:
    for key in sorted(keys, key=len, reverse=True):
        text = text.replace(key, HIDDEN)
    return text


def _arguments(text: str, keys: Collection[str]) -> str:
    """The arguments of a tool call, which are JSON text and are parsed first: `n-secret` is no part of
    `"\\n-secret"`."""
    try:
        arguments = json.loads(text)
        safe = hidden(arguments, keys)
        return text if safe == arguments else json.dumps(safe, ensure_ascii=False)
    except (ValueError, RecursionError):
        return _text(text, keys)
