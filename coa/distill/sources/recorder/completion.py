"""Replies and requests as they are recorded, whatever their protocol: as messages of chat completions."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from coa.json_object import Json, JsonView


@dataclass(frozen=True, slots=True)
class Completion:
    message: JsonView | None
    """The chat message: role, content, tool_calls; None if nothing arrived."""
    finish: str = ""
    """The finish reason: "stop", "tool_calls", "length"; empty if unknown."""
    usage: JsonView | None = None
    model: str = ""
    id: str = ""
    """The reply's id, by which a later request may continue it; empty if its protocol has no such ids."""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request, as one of chat completions."""

    messages: object
    """None if the request could not be read."""
    tools: object = None
    continues: str = ""
    """The id of the reply whose conversation the messages continue; empty if they are all."""
    missing: str = ""
    """The part of the request that only the endpoint has, so that it can't be recorded; empty for none."""


def text_in(fields: JsonView, *names: str) -> str:
    """The first of these fields that is a text; "" for none."""
    return next((value for name in names if isinstance(value := fields.get(name), str) and value), "")


def content_of(parts: Sequence[object]) -> object:
    """Parts of a message as its content: a text if all of them are texts; None if there are none."""
    texts = [part["text"] for part in parts if isinstance(part, Mapping) and isinstance(part.get("text"), str)]
    if len(texts) == len(parts):
        return "\n".join(texts) if texts else None
    return list(parts)


def call_of(key: object, name: object, arguments: str) -> Json:
    return {"id": key or "", "type": "function", "function": {"name": name or "", "arguments": arguments}}


def assistant(texts: Sequence[object], thoughts: Sequence[str], calls: Sequence[Json]) -> Json:
    """A message of the model. texts: parts of its content."""
    message: Json = {"role": "assistant", "content": content_of(texts)}
    if thought := "\n".join(filter(None, thoughts)):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = list(calls)
    return message


def counts(prompt: object, completion: object) -> Json | None:
    """Usage in the words of chat completions; None if there is none."""
    if not isinstance(prompt, int) and not isinstance(completion, int):
        return None
    sent, made = (value if isinstance(value, int) else 0 for value in (prompt, completion))
    return {"prompt_tokens": sent, "completion_tokens": made, "total_tokens": sent + made}
