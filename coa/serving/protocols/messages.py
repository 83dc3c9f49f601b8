"""Writes an episode in Anthropic's Messages protocol: by default one thinking block and the answer
(`coa.serving.detail`), with `Detail.all` each tag and each tool.

think, plan, ... ──► thinking        answer ──► text
a tool ──► server_tool_use, and its result right after it: web_search_tool_result, code_execution_tool_result, ...
a tool of an MCP server, or of an extension ──► mcp_tool_use and mcp_tool_result, the only types for tools of any name
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from coa.agent.grammar import ANSWER, TAGS, Kind
from coa.json_object import Json, JsonView
from coa.serving.chain import Closed, Opened, Text
from coa.serving.detail import Detail
from coa.serving.events import Broke, Event, Finished, Returned, ServedUsage
from coa.tools.code import read_program
from coa.tools.mcp.binding import McpBinding
from coa.types import Status

CALLS = ("server_tool_use", "mcp_tool_use")
STOP = {
    Status.ANSWERED: "end_turn",
    Status.TRUNCATED: "max_tokens",
    Status.OUT_OF_TURNS: "max_tokens",
    Status.MALFORMED: "end_turn",
}


@dataclass(slots=True)
class MessageWriter:
    """Turns the events of one episode into streaming events, and keeps the message's blocks."""

    message: JsonView
    """`id`, `model` and `role`."""
    new_id: Callable[[str], str]
    mcp: Mapping[str, McpBinding] = field(default_factory=dict)
    """The tools of MCP servers, by the tags that they answer."""
    detail: Detail = Detail.standard
    blocks: list[Json] = field(default_factory=list)
    end: Finished | Broke | None = None
    _tag: str | None = None
    _open: bool = False
    """Whether the last block may still grow."""

    def begin(self) -> list[Json]:
        return [
            {
                "type": "message_start",
                "message": self._render([], {"stop_reason": None, "stop_sequence": None}, self._usage(ServedUsage())),
            }
        ]

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
                closed = [*self._stop(), *self._without_result(event.limit)]
                delta = {**_stopped(event), **self._extra_fields(event)}
                ended = {"type": "message_delta", "delta": delta, "usage": self._usage(event.usage)}
                return [*closed, ended, {"type": "message_stop"}]
            case Broke(message=message):
                self.end = event
                return [{"type": "error", "error": {"type": "api_error", "message": message}}]

    def whole(self) -> Json:
        """The message of an episode that has finished."""
        assert isinstance(self.end, Finished)
        shown = self._render(self.blocks, _stopped(self.end), self._usage(self.end.usage))
        return {**shown, **self._extra_fields(self.end)}

    def _render(self, blocks: list[Json], stopped: Json, usage: Json) -> Json:
        return {
            **self.message,
            "type": "message",
            "content": blocks,
            **stopped,
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
        bound = self.mcp.get(tag)
        block = _call_block(tag, text) if bound is None else _mcp_block(bound, text.strip())
        start = self._start({"id": self.new_id("srvtoolu"), **block})
        return [start, *self._stop()]

    def _result(self, returned: Returned) -> list[Json]:
        if self._called is None:
            return []
        return [self._start(_result_block(self._called, returned.text)), *self._stop()]

    def _without_result(self, limit: str) -> list[Json]:
        """A result for the call that had none when the episode ended, since every tool use needs a result."""
        if self._called is None:
            return []
        return [self._start(_no_result_block(self._called, limit)), *self._stop()]

    @property
    def _called(self) -> Json | None:
        """The last block, if it is a tool use."""
        return self.blocks[-1] if self.blocks and self.blocks[-1]["type"] in CALLS else None

    def _extra_fields(self, end: Finished) -> Json:
        """If the request asked for all: the limit that ended the episode, since the protocol has only `max_tokens` for
        all limits; and the versions of the weights, for which it has no field."""
        if self.detail is not Detail.all:
            return {}
        return {"coa:versions": list(end.versions), **({"coa:limit": end.limit} if end.limit else {})}

    def _usage(self, usage: ServedUsage) -> Json:
        names = [block["name"] for block in self.blocks if block["type"] == "server_tool_use"]
        return {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": usage.cached_tokens,
            "server_tool_use": {
                "web_search_requests": names.count("web_search"),
                "web_fetch_requests": names.count("web_fetch"),
                **({"tool_calls": usage.tool_calls} if self.detail is Detail.all else {}),
            },
        }


def _stopped(end: Finished) -> Json:
    reason = "stop_sequence" if end.stopped_by else STOP[end.status]
    return {"stop_reason": reason, "stop_sequence": end.stopped_by or None}


def _is_tool(tag: str) -> bool:
    return TAGS[tag].kind is Kind.TOOL


def _block(tag: str) -> Json:
    if tag == ANSWER:
        return {"type": "text", "text": ""}
    return {"type": "thinking", "thinking": f"[{tag}] " if tag != "think" else "", "signature": ""}


def _call_block(tag: str, text: str) -> Json:
    """The tool use of a tag's call, as the corresponding tool of Anthropic's."""
    asked = text.strip()
    match tag:
        case "web_search":
            return {"type": "server_tool_use", "name": "web_search", "input": {"query": asked}}
        case "wiki_search":
            return {"type": "server_tool_use", "name": "web_search", "input": {"query": asked}, "coa:tool": tag}
        case "crawl_page":
            return {"type": "server_tool_use", "name": "web_fetch", "input": {"url": asked}}
        case "code":
            return {"type": "server_tool_use", "name": "code_execution", "input": {"code": read_program(text).source}}
        case _:
            return {"type": "mcp_tool_use", "name": tag, "server_name": "coa", "input": {"input": asked}}


def _mcp_block(bound: McpBinding, text: str) -> Json:
    """The tool use of an MCP call; its input is an object, so text without arguments is wrapped in one."""
    asked = bound.arguments_or_text(text)
    given = asked if isinstance(asked, dict) else {"input": asked}
    return {"type": "mcp_tool_use", "name": bound.tool, "server_name": bound.server, "input": given}


def _result_block(call: Json, text: str) -> Json:
    """A tool's result. Anthropic's search has pages and no text, so the result is one page with a field of ours."""
    if call["type"] == "mcp_tool_use":
        content: Json | list[Json] = [{"type": "text", "text": text}]
        return {"type": "mcp_tool_result", "tool_use_id": call["id"], "is_error": False, "content": content}
    match call["name"]:
        case "web_search":
            page = {"url": "", "title": call["input"]["query"], "encrypted_content": "", "page_age": None}
            content = [{"type": "web_search_result", **page, "coa:text": text}]
        case "web_fetch":
            source = {"type": "text", "media_type": "text/plain", "data": text}
            document = {"type": "document", "source": source, "title": None, "citations": None}
            url = call["input"]["url"]
            content = {"type": "web_fetch_result", "url": url, "content": document, "retrieved_at": None}
        case _:
            printed = {"stdout": text, "stderr": "", "return_code": 0, "content": []}
            content = {"type": "code_execution_result", **printed}
    return {"type": f"{call['name']}_tool_result", "tool_use_id": call["id"], "content": content}


def _no_result_block(call: Json, limit: str) -> Json:
    """The result of a call that was not made, or did not return in time. limit: the limit that ended the episode."""
    if call["type"] == "mcp_tool_use":
        return {"type": "mcp_tool_result", "tool_use_id": call["id"], "is_error": True, "content": []}
    beyond = limit in ("max_tool_calls", "max_turns") and call["name"] != "code_execution"
    kind, code = f"{call['name']}_tool_result", "max_uses_exceeded" if beyond else "unavailable"
    return {"type": kind, "tool_use_id": call["id"], "content": {"type": f"{kind}_error", "error_code": code}}
