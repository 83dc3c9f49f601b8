"""Writes an episode in the Responses API (Open Responses 2.4, and OpenAI's item types for tools that the server runs).

think ──► reasoning          answer ──► message          plan, reflection, ... ──► coa:plan, coa:reflection, ...
web_search, crawl_page ──► web_search_call    wiki_search ──► file_search_call    code ──► code_interpreter_call
a tool of an MCP server, whatever its tag ──► mcp_call          a tool of an extension ──► coa:NAME

So much for a request with `Detail.all`; by default, only a thought and the answer come (`coa.serving.detail`). Every
item has the call and its result, so that a client that does not stream sees the same, and its cost in additional
fields: `coa:tokens`, `coa:seconds` and `coa:observed_tokens`.
"""

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType

from coa.agent.grammar import ANSWER, TAGS, THINK, Kind
from coa.json_object import Json
from coa.serving.chain import Closed, Opened, Text
from coa.serving.events import TOOL_DOWN, Broke, Event, Finished, Returned
from coa.serving.protocols.resource import Resource
from coa.tools.code import read_program
from coa.tools.mcp.binding import McpBinding
from coa.types import Status


class ResponseWriter:
    """Turns the events of one episode into streaming events of its resource."""

    def __init__(self, resource: Resource, mcp: Mapping[str, McpBinding] = MappingProxyType({})) -> None:
        """mcp: the tools of MCP servers, by the tags that they answer."""
        self._resource, self._mcp = resource, mcp
        self._tag: str | None = None
        """Tag of the item that is open, or whose tool is running."""
        self._text: list[str] = []

    def take(self, event: Event) -> list[Json]:
        """The streaming events of an event."""
        match event:
            case Opened(tag):
                return [*self._leave(), *self._open(tag)]
            case Text(text):
                return self._add(text)
            case Closed():
                return self._close(event)
            case Returned():
                return self._returned(event)
            case Finished():
                return [*self._leave(), self._finish(event)]
            case Broke(code=code, message=message):
                left = self._fail_call(message) if code == TOOL_DOWN and self._on("mcp_call") else self._leave()
                return [*left, self._resource.fail(code, message)]

    def _finish(self, end: Finished) -> Json:
        self._resource.sampled_by(end.versions)
        match end.status:
            case Status.ANSWERED:
                return self._resource.complete(end.usage, end.at)
            case Status.MALFORMED:
                return self._resource.fail("malformed_output", "the model wrote a turn that is not in form")
            case _:
                return self._resource.leave_incomplete(end.usage, end.limit)

    def _on(self, kind: str) -> bool:
        """Whether the open item is of that type."""
        return self._tag is not None and self._resource.item["type"] == kind

    def _open(self, tag: str) -> list[Json]:
        self._tag, self._text = tag, []
        if tag == ANSWER:
            return self._resource.add_message()
        if tag == THINK:
            return self._resource.add_reasoning()
        if binding := self._mcp.get(tag):
            kind, prefix, empty = "mcp_call", "mcp", _empty_mcp(binding)
        else:
            kind, prefix = _item_type(tag)
            empty = _EMPTY.get(kind, _empty_tool if _is_tool(tag) else _empty_role)()
        added = self._resource.add(kind, prefix, empty)
        return [added, *([self._resource.of_item(f"response.{kind}.in_progress")] if kind in _PROGRESS else [])]

    def _add(self, text: str) -> list[Json]:
        if self._tag is None:
            return []
        self._text.append(text)
        match self._resource.item["type"]:
            case "message":
                return [self._resource.text(text)]
            case "reasoning":
                return [self._resource.reason(text)]
            case "code_interpreter_call":
                return [self._resource.of_item("response.code_interpreter_call_code.delta", delta=text)]
            case _ if _is_tool(self._tag):
                return []
            case _:
                return [self._resource.of_part("coa:text.delta", delta=text)]

    def _close(self, closed: Closed) -> list[Json]:
        if self._tag != closed.tag:
            return []
        self._resource.note(tokens=closed.tokens)
        if _is_tool(closed.tag):
            return self._call(closed.text)
        self._tag = None
        return self._end(closed.text, "completed")

    def _call(self, text: str) -> list[Json]:
        """The events of a tool call; the item stays open until the tool returns."""
        assert self._tag is not None
        item, kind = self._resource.item, self._resource.item["type"]
        item.update(self._called(self._tag, text))
        of_item, running = self._resource.of_item, _PROGRESS.get(kind)
        done: list[Json] = []
        if kind == "code_interpreter_call":
            done = [of_item("response.code_interpreter_call_code.done", code=item["code"])]
        elif kind == "mcp_call":
            arguments = item["arguments"]
            done = [
                of_item("response.mcp_call_arguments.delta", delta=arguments),
                of_item("response.mcp_call_arguments.done", arguments=arguments),
            ]
        return [*done, *([of_item(f"response.{kind}.{running}")] if running else [])]

    def _called(self, tag: str, text: str) -> Json:
        """Returns the input of a tool call in the fields of its item."""
        if binding := self._mcp.get(tag):
            return {"arguments": json.dumps(binding.arguments_or_text(text.strip()), ensure_ascii=False)}
        return _called(self._resource.item["type"], tag, text)

    def _fail_call(self, message: str) -> list[Json]:
        """The events of a call whose server could not be reached, or failed."""
        self._tag = None
        error = {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": message}]}
        self._resource.item.update(status="failed", error=error)
        return [self._resource.of_item("response.mcp_call.failed"), self._resource.item_done()]

    def _returned(self, returned: Returned) -> list[Json]:
        if self._tag is None:
            return []
        self._tag, kind = None, self._resource.item["type"]
        self._resource.item.update(_answered(kind, returned.text), status="completed")
        self._resource.note(seconds=round(returned.seconds, 3), observed_tokens=returned.tokens)
        completed = [self._resource.of_item(f"response.{kind}.completed")] if kind in _PROGRESS else []
        return [*completed, self._resource.item_done()]

    def _leave(self) -> list[Json]:
        """Ends an item that the model or its tool left open."""
        if self._tag is None:
            return []
        tag, text, self._tag = self._tag, "".join(self._text), None
        if _is_tool(tag):
            self._resource.item.update(self._called(tag, text), status="incomplete")
            return [self._resource.item_done()]
        return self._end(text, "incomplete")

    def _end(self, text: str, status: str) -> list[Json]:
        item = self._resource.item
        match item["type"]:
            case "message":
                return self._resource.close_message(text, status)
            case "reasoning":
                return self._resource.close_reasoning(text)
            case _:
                item.update(status=status, content=[{"type": "text", "text": text}])
                return [self._resource.of_part("coa:text.done", text=text), self._resource.item_done()]


_TOOL_TYPES = {
    "web_search": ("web_search_call", "ws"),
    "crawl_page": ("web_search_call", "ws"),
    "wiki_search": ("file_search_call", "fs"),
    "code": ("code_interpreter_call", "ci"),
}
_PROGRESS = {
    "web_search_call": "searching",
    "file_search_call": "searching",
    "code_interpreter_call": "interpreting",
    "mcp_call": "",
}
"""Name of the event of a running tool, if there is one; all of these tools also have `in_progress` and `completed`."""
_EMPTY: dict[str, Callable[[], Json]] = {
    "web_search_call": lambda: {"status": "in_progress", "action": {"type": "search", "query": ""}},
    "file_search_call": lambda: {"status": "in_progress", "queries": [], "results": None},
    "code_interpreter_call": lambda: {"status": "in_progress", "code": "", "container_id": "", "outputs": None},
}


def _empty_role() -> Json:
    return {"status": "in_progress", "content": []}


def _empty_tool() -> Json:
    return {"status": "in_progress", "input": "", "output": None}


def _empty_mcp(binding: McpBinding) -> Json:
    name = {"server_label": binding.server, "name": binding.tool, "approval_request_id": None}
    return {"status": "in_progress", **name, "arguments": "", "output": None, "error": None}


def _is_tool(tag: str) -> bool:
    return TAGS[tag].kind is Kind.TOOL


def _item_type(tag: str) -> tuple[str, str]:
    """The type of a tag's item, and the prefix of its id."""
    return _TOOL_TYPES.get(tag, (f"coa:{tag}", "coa"))


def _called(kind: str, tag: str, text: str) -> Json:
    """Returns the input of a tool call in the fields of its item."""
    asked = text.strip()
    match kind:
        case "web_search_call" if tag == "crawl_page":
            return {"action": {"type": "open_page", "url": asked}}
        case "web_search_call":
            return {"action": {"type": "search", "query": asked, "queries": [asked], "sources": []}}
        case "file_search_call":
            return {"queries": [asked]}
        case "code_interpreter_call":
            return {"code": read_program(text).source}
        case _:
            return {"input": asked}


def _answered(kind: str, text: str) -> Json:
    """A tool's result, in its item's own fields. OpenAI's web search has no field for text, so it gets one of ours."""
    match kind:
        case "web_search_call":
            return {"coa:output": text}
        case "file_search_call":
            return {"results": [{"file_id": "", "filename": "", "score": 0.0, "text": text, "attributes": {}}]}
        case "code_interpreter_call":
            return {"outputs": [{"type": "logs", "logs": text}]}
        case _:
            return {"output": text}
