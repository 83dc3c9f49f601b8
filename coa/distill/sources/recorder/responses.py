"""The Responses protocol: its requests and replies as those of chat completions.

    {"type": "message", "role": "user", ...}                                 a message
    {"type": "reasoning"}, {"type": "message"}, {"type": "function_call"}    one message of the model, with its calls
    {"type": "function_call_output", "call_id": ...}                         a result

A tool that the endpoint itself calls (`web_search_call`) is a call without a result, since its result is not told.
"""

import json
from collections.abc import Iterator, Sequence

from coa.distill.sources.messages import text_of
from coa.distill.sources.recorder.completion import (
    Completion,
    RecordedRequest,
    assistant,
    call_of,
    content_of,
    counts,
    text_in,
)
from coa.distill.sources.recorder.events import Stream
from coa.json_object import Json

_FINISH = {"max_output_tokens": "length", "content_filter": "content_filter"}
_TEXTS = ("input_text", "output_text", "text", "reasoning_text", "summary_text")
_KEPT = {"conversation": "its conversation", "prompt": "its prompt"}
"""Fields of requests that name what the endpoint keeps."""


def parse_request(request: Json) -> RecordedRequest:
    sent = request.get("input")
    items = [{"role": "user", "content": sent}] if isinstance(sent, str) else sent
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return RecordedRequest(None)
    told = request.get("instructions")
    system = [{"role": "system", "content": told}] if isinstance(told, str) and told else []
    missing = next((what for name, what in _KEPT.items() if request.get(name)), "")
    if any(item.get("type") == "item_reference" for item in items):
        missing = "items of its input"
    tools = [_tool(tool) for tool in request.get("tools") or () if isinstance(tool, dict)]
    return RecordedRequest(
        messages=[*system, *_messages(items)],
        tools=tools or None,
        continues=text_in(request, "previous_response_id"),
        missing=missing,
    )


def read(reply: Json) -> Completion:
    """Reads a response; raises LookupError, TypeError or ValueError if it is none, or has failed."""
    items, status = reply["output"], reply.get("status")
    if status in ("failed", "cancelled"):
        error = reply.get("error")
        raise ValueError(f"the response has {status}: {error.get('message') if isinstance(error, dict) else error}")
    if status in ("queued", "in_progress"):
        raise ValueError("the response is made in the background, and fetched later")
    return _completion(reply, items)


def _completion(reply: Json, items: Sequence[Json]) -> Completion:
    # Outputs of tools that the endpoint itself called are no words of the model.
    message = next(_pop_message([item for item in items if not _kind(item).endswith("_output")]), None)
    why = reply.get("incomplete_details")
    finish = "tool_calls" if message and message.get("tool_calls") else "stop"
    if reply.get("status") == "incomplete":
        finish = _FINISH.get(text_in(why, "reason") if isinstance(why, dict) else "", "length")
    usage = reply.get("usage")
    used = counts(usage.get("input_tokens"), usage.get("output_tokens")) if isinstance(usage, dict) else None
    return Completion(message, finish if items else "", used, text_in(reply, "model"), text_in(reply, "id"))


def _messages(items: Sequence[Json]) -> Iterator[Json]:
    """Items as messages; items of the model that follow each other are one message."""
    said: list[Json] = []
    for item in items:
        kind = _kind(item)
        if kind.endswith("_output"):
            yield from _pop_message(said)
            yield {"role": "tool", "tool_call_id": item.get("call_id"), "content": _content(item.get("output"))}
        elif kind == "message" and item.get("role") != "assistant":
            yield from _pop_message(said)
            yield {"role": item.get("role"), "content": _content(item.get("content"))}
        else:
            said.append(item)
    yield from _pop_message(said)


def _pop_message(items: list[Json]) -> Iterator[Json]:
    """The message in some items of the model, which are removed; none if there are none."""
    texts: list[object] = []
    thoughts: list[str] = []
    calls: list[Json] = []
    for item in items:
        kind = _kind(item)
        if kind == "message":
            content = item.get("content")
            texts += [{"type": "text", "text": content}] if isinstance(content, str) else map(_part, content or ())
        elif kind == "reasoning":
            thoughts.append(text_of(item.get("content")) or text_of(item.get("summary")))
        else:
            calls.append(_call(kind, item))
    if items:
        yield assistant(texts, thoughts, calls)
        items.clear()


def _kind(item: Json) -> str:
    return text_in(item, "type") or "message"


def _call(kind: str, item: Json) -> Json:
    key, name = text_in(item, "call_id", "id"), text_in(item, "name") or kind.removesuffix("_call")
    arguments = next((item[field] for field in ("arguments", "input", "action", "code") if item.get(field)), "")
    return call_of(key, name, arguments if isinstance(arguments, str) else json.dumps(arguments))


def _content(content: object) -> object:
    return content_of([_part(part) for part in content]) if isinstance(content, list) else content


def _part(part: object) -> object:
    if isinstance(part, dict) and part.get("type") in _TEXTS:
        return {"type": "text", "text": part.get("text")}
    if isinstance(part, dict) and part.get("type") == "refusal":
        return {"type": "text", "text": part.get("refusal")}
    return part


def _tool(tool: Json) -> Json:
    if tool.get("type") != "function":
        return tool
    return {"type": "function", "function": {name: value for name, value in tool.items() if name != "type"}}


class ResponsesStream(Stream):
    def __init__(self) -> None:
        super().__init__()
        self._response: Json = {}
        self._items: dict[int, Json] = {}
        self._begun_items: dict[int, Json] = {}

    @property
    def completion(self) -> Completion:
        items = self._response.get("output") or [one for _, one in sorted({**self._begun_items, **self._items}.items())]
        done = _completion(self._response, items)
        return done if self.ended else Completion(done.message, "", done.usage, done.model, done.id)

    def take(self, name: str, chunk: Json) -> None:
        kind, index = text_in(chunk, "type") or name, chunk.get("output_index", 0)
        if kind == "response.output_item.done":
            self._items[index] = chunk["item"]
        elif kind == "response.output_item.added":
            self._begun_items[index] = chunk["item"]
        elif kind == "response.output_text.delta":
            item = self._begun_items.setdefault(index, {"type": "message", "role": "assistant"})
            before = item["content"][0]["text"] if item.get("content") else ""
            item["content"] = [{"type": "output_text", "text": before + chunk["delta"]}]
        elif kind == "response.function_call_arguments.done":
            self._begun_items.setdefault(index, {"type": "function_call"})["arguments"] = chunk["arguments"]
        elif isinstance(response := chunk.get("response"), dict):
            self._response = response
            if kind in ("response.completed", "response.incomplete"):
                self.ended = True
            elif kind == "response.failed":
                read(response | {"output": [], "status": "failed"})
