"""Writes an episode in Anthropic's Messages protocol.

think, plan, ... ──► thinking        answer ──► text
a tool ──► server_tool_use, and its result right after it: web_search_tool_result, code_execution_tool_result, ...
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from coa.agent.grammar import ANSWER, TAGS, Kind
from coa.serving.chain import Closed, Opened, Text
from coa.serving.events import Broke, Event, Finished, Returned, ServedUsage
from coa.tools.code import read_program
from coa.types import Status

Json = dict[str, Any]

STOP = {
    Status.ANSWERED: "end_turn",
    Status.TRUNCATED: "max_tokens",
    Status.OUT_OF_TURNS: "max_tokens",
    Status.MALFORMED: "end_turn",
}


@dataclass(slots=True)
class MessageWriter:
    """Turns the events of one episode into streaming events, and keeps the message's blocks."""

    message: Mapping[str, Any]
    """`id`, `model` and `role`."""
    new_id: Callable[[str], str]
    blocks: list[Json] = field(default_factory=list)
    end: Finished | Broke | None = None
    _tag: str | None = None
    _open: bool = False
    """Whether the last block may still grow."""

    def begin(self) -> list[Json]:
        return [{"type": "message_start", "message": self._shown([], None, usage_of(ServedUsage()))}]

    def take(self, event: Event) -> list[Json]:
        match event:
            case Opened(tag):
                closed, self._tag = self._stop(), tag
                if _is_tool(tag):
                    return closed
                return [*closed, self._start(_block(tag))]
            case Text(text) if self._open:
                return [self._delta(text)]
            case Text():
                return []
            case Closed(tag, text, _) if _is_tool(tag):
                return self._call(tag, text)
            case Closed():
                return self._stop()
            case Returned():
                return self._result(event)
            case Finished():
                self.end = event
                delta = {"stop_reason": STOP[event.status], "stop_sequence": None}
                ended = {"type": "message_delta", "delta": delta, "usage": usage_of(event.usage)}
                return [*self._stop(), ended, {"type": "message_stop"}]
            case Broke(message=message):
                self.end = event
                return [{"type": "error", "error": {"type": "api_error", "message": message}}]

    def whole(self) -> Json:
        """The message of an episode that has finished."""
        assert isinstance(self.end, Finished)
        return self._shown(self.blocks, STOP[self.end.status], usage_of(self.end.usage))

    def _shown(self, blocks: list[Json], stop: str | None, usage: Json) -> Json:
        return {
            **self.message,
            "type": "message",
            "content": blocks,
            "stop_reason": stop,
            "stop_sequence": None,
            "usage": usage,
        }

    def _start(self, block: Json) -> Json:
        self.blocks.append(block)
        self._open = True
        return {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, text: str) -> Json:
        block = self.blocks[-1]
        block[block["type"]] += text
        delta = {"type": f"{block['type']}_delta", block["type"]: text}
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}

    def _stop(self) -> list[Json]:
        if not self._open:
            return []
        self._open = False
        return [{"type": "content_block_stop", "index": len(self.blocks) - 1}]

    def _call(self, tag: str, text: str) -> list[Json]:
        name, asked = _called(tag, text)
        start = self._start({"type": "server_tool_use", "id": self.new_id("srvtoolu"), "name": name, "input": asked})
        return [start, *self._stop()]

    def _result(self, returned: Returned) -> list[Json]:
        if not self.blocks or self.blocks[-1]["type"] != "server_tool_use":
            return []
        called = self.blocks[-1]
        result = _result(called["name"], returned.text)
        return [self._start({**result, "tool_use_id": called["id"]}), *self._stop()]


def usage_of(usage: ServedUsage) -> Json:
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "server_tool_use": {"web_search_requests": 0, "tool_calls": usage.tool_calls},
    }


def _is_tool(tag: str) -> bool:
    return TAGS[tag].kind is Kind.TOOL


def _block(tag: str) -> Json:
    if tag == ANSWER:
        return {"type": "text", "text": "", "citations": None}
    return {"type": "thinking", "thinking": f"[{tag}] " if tag != "think" else "", "signature": ""}


def _called(tag: str, text: str) -> tuple[str, Json]:
    """The name and the input of the tool that a tag calls."""
    asked = text.strip()
    match tag:
        case "web_search":
            return tag, {"query": asked}
        case "crawl_page":
            return "web_fetch", {"url": asked}
        case "code":
            return "code_execution", {"code": read_program(text).source}
        case _:
            return tag, {"query": asked}


def _result(name: str, text: str) -> Json:
    match name:
        case "code_execution":
            content = {
                "type": "code_execution_result",
                "stdout": text,
                "stderr": "",
                "return_code": 0,
                "content": [],
            }
            return {"type": "code_execution_tool_result", "content": content}
        case _:
            return {"type": f"{name}_tool_result", "content": [{"type": "text", "text": text}]}
