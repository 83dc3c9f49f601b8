"""Server-sent events: how each protocol's events are written to a stream."""

import json
from typing import Any

Json = dict[str, Any]
DONE = "data: [DONE]\n\n"
"""Ends the streams of OpenAI's protocols."""


def data(event: Json) -> str:
    return f"data: {json.dumps(event, ensure_ascii=False)}\n\n"


def named(event: Json) -> str:
    """An event whose name is its type."""
    return f"event: {event['type']}\n{data(event)}"
