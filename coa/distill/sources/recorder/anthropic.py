"""Anthropic's Messages protocol: its requests and replies as those of chat completions.

    {"type": "text"}, {"type": "thinking"}, {"type": "tool_use"}    one message of the model, with its calls
    {"type": "tool_result", "tool_use_id": ...}                     a result, which is a message of its own

A tool that the endpoint itself calls (`server_tool_use`) is a call without a result.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Any

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

_FINISH = {
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}
_NO_WORDS = ("thinking", "tool_use", "tool_result")
"""How the types of blocks end that are no words of the model."""
_PROMPT = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "input_json_delta": "partial_json"}


def parse_request(request: Json) -> RecordedRequest:
    sent = request.get("messages")
    if not isinstance(sent, list) or not all(isinstance(message, dict) for message in sent):
        return RecordedRequest(None)
    told = request.get("system")
    system = [{"role": "system", "content": content_of(_blocks(told))}] if told else []
    tools = [_tool(tool) for tool in request.get("tools") or () if isinstance(tool, dict)]
    return RecordedRequest([*system, *(one for message in sent for one in _messages(message))], tools or None)


def read(reply: Json) -> Completion:
    """Reads a message; raises LookupError, TypeError or ValueError if it is none."""
    if reply["type"] != "message":
        raise ValueError(reply["type"])
    blocks, usage = reply["content"], reply.get("usage")
    return _completion(reply, blocks, text_in(reply, "stop_reason"), usage if isinstance(usage, dict) else {})


def _completion(reply: Json, blocks: Sequence[Json], stop: str, usage: Json) -> Completion:
    message = _as_message(blocks) if blocks or stop else None
    finish = _FINISH.get(stop, "stop") if stop else ""
    sent = [usage[name] for name in _PROMPT if isinstance(usage.get(name), int)]
    used = counts(sum(sent) if sent else None, usage.get("output_tokens"))
    return Completion(message, finish, used, text_in(reply, "model"))


def _blocks(content: Any) -> list[object]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())


def _messages(message: Json) -> Iterator[Json]:
    blocks = _blocks(message.get("content"))
    if message.get("role") == "assistant":
        yield _as_message(blocks)
        return
    results = [block for block in blocks if isinstance(block, dict) and block.get("type") == "tool_result"]
    for block in results:
        content = content_of([_text(part) for part in _blocks(block.get("content"))])
        yield {"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": content or ""}
    rest = [_text(block) for block in blocks if block not in results]
    if rest or not results:
        yield {"role": message.get("role"), "content": content_of(rest) or ""}


def _as_message(blocks: Sequence[object]) -> Json:
    blocks = [block for block in blocks if isinstance(block, dict)]
    uses = [block for block in blocks if text_in(block, "type").endswith("tool_use")]
    return assistant(
        [_text(block) for block in blocks if not text_in(block, "type").endswith(_NO_WORDS)],
        [text_in(block, "thinking") for block in blocks],
        [call_of(block.get("id"), block.get("name"), _arguments(block.get("input"))) for block in uses],
    )


def _arguments(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value or {}, ensure_ascii=False)


def _text(block: object) -> object:
    """A text without what belongs to the protocol, such as marks of the cache."""
    if isinstance(block, dict) and block.get("type") == "text":
        return {"type": "text", "text": block.get("text")}
    return block


def _tool(tool: Json) -> Json:
    if "input_schema" not in tool:
        return tool
    names = {"name": "name", "description": "description", "input_schema": "parameters"}
    return {"type": "function", "function": {ours: tool[name] for name, ours in names.items() if name in tool}}


class MessagesStream(Stream):
    def __init__(self) -> None:
        super().__init__()
        self._message: Json = {}
        self._blocks: dict[int, Json] = {}
        self._pieces_of: dict[int, list[str]] = {}
        self._stop = ""
        self._usage: Json = {}

    @property
    def completion(self) -> Completion:
        blocks = [self._block(index) for index in sorted(self._blocks)]
        return _completion(self._message, blocks, self._stop, self._usage)

    def take(self, name: str, chunk: Json) -> None:
        match text_in(chunk, "type") or name:
            case "message_start":
                self._message = chunk["message"]
                self._count(self._message.get("usage"))
            case "content_block_start":
                self._blocks[chunk["index"]] = chunk["content_block"]
            case "content_block_delta":
                delta = chunk["delta"]
                if (piece := delta.get(_GROWING.get(delta.get("type"), ""))) is not None:
                    self._pieces_of.setdefault(chunk["index"], []).append(piece)
            case "message_delta":
                self._stop = text_in(chunk["delta"], "stop_reason") or self._stop
                self._count(chunk.get("usage"))
            case "message_stop":
                self.ended = True

    def _block(self, index: int) -> Json:
        """A block with its pieces; the arguments of a tool are text."""
        block, grown = self._blocks[index], "".join(self._pieces_of.get(index, ()))
        if text_in(block, "type").endswith("tool_use"):
            return {**block, "input": grown or block.get("input")}
        name = "thinking" if block.get("type") == "thinking" else "text"
        return {**block, name: text_in(block, name) + grown}

    def _count(self, usage: object) -> None:
        """Counts of later events are totals; some servers put zeros into the first or the last of them."""
        for name, value in usage.items() if isinstance(usage, dict) else ():
            if isinstance(value, int):
                self._usage[name] = max(value, self._usage.get(name, 0))
