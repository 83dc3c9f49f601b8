"""How answers are written: JSON, and the server-sent events of each protocol's streams."""

import json
from typing import Any

from coa.storage.unicode import whole

Json = dict[str, Any]
DONE = "data: [DONE]\n\n"
"""Ends the streams of OpenAI's protocols."""


def written(answer: Any) -> str:
    """As JSON. Halves of surrogate pairs, which a client's JSON may hold and UTF-8 may not, become question marks."""
    return whole(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))


def data(event: Json) -> str:
    return f"data: {written(event)}\n\n"


def named(event: Json) -> str:
    """An event whose name is its type."""
    return f"event: {event['type']}\n{data(event)}"
