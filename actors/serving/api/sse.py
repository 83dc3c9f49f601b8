"""Serialization of answers: JSON, and server-sent events for streams."""

import json

from coa.json_object import Json
from coa.unicode import whole

DONE = "data: [DONE]\n\n"
"""Last event of a stream in OpenAI's protocols."""


def to_json(answer: object) -> str:
    """The answer as JSON. Lone surrogates, which a client's JSON may contain but UTF-8 may not, become question
    marks."""
    return whole(json.dumps(answer, ensure_ascii=False, separators=(",", ":")))


def data(event: Json) -> str:
    return f"data: {to_json(event)}\n\n"


def event_text(event: Json) -> str:
    """A server-sent event named by the event's type."""
    return f"event: {event['type']}\n{data(event)}"
