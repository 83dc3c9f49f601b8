"""The Responses API for the model alone, implemented with chat completions.

A request is converted to a chat completion, and the chunks of its stream to events.
"""

from collections.abc import Sequence

from coa.json_object import Json
from coa.serving.events import ServedUsage
from coa.serving.faults import ApiError, invalid
from coa.serving.parameters import EXTRA_OF_RESPONSES
from coa.serving.protocols.resource import Resource
from coa.serving.protocols.schemas import CreateResponse

PARTS = {"input_text": "text", "output_text": "text", "text": "text"}


def chat_of(body: CreateResponse, before: Sequence[Json]) -> Json:
    """The streamed request of chat completions. before: messages of the previous responses.

    Raises ApiError for items that chat does not support.
    """
    extra = body.model_extra or {}
    tools, choice = allowed(body.tools or (), extra.get("tool_choice"))
    instructions = [{"role": "system", "content": body.instructions}] if body.instructions else []
    request: Json = {
        "model": body.model,
        "messages": [*instructions, *before, *input_messages(body)],
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": body.temperature,
        "top_p": body.top_p,
        "max_completion_tokens": body.max_output_tokens,
        "tools": [_tool(tool) for tool in tools] or None,
        "tool_choice": _choice(choice) if tools else None,
        **{name: extra.get(name) for name in EXTRA_OF_RESPONSES},
        "response_format": _format((body.text or {}).get("format")),
    }
    return {name: value for name, value in request.items() if value is not None}


def input_messages(body: CreateResponse) -> list[Json]:
    """The input as messages of chat."""
    if isinstance(body.input, str):
        return [{"role": "user", "content": body.input}]
    messages: list[Json] = []
    for item in body.input:
        fields = item.model_dump()
        called = bool(messages) and "tool_calls" in messages[-1]
        match item.type:
            case "message":
                messages.append({"role": fields.get("role", "user"), "content": _content(fields.get("content"))})
            case "function_call":
                function = {"name": fields.get("name"), "arguments": fields.get("arguments")}
                call = {"id": fields.get("call_id"), "type": "function", "function": function}
                if called:  # calls in a row are of one message
                    messages[-1]["tool_calls"].append(call)
                else:
                    messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            case "function_call_output":
                output = fields.get("output")
                text = output if isinstance(output, str) else "".join(part["text"] for part in _texts(output))
                messages.append({"role": "tool", "tool_call_id": fields.get("call_id"), "content": text})
            case "reasoning":
                pass
            case other:
                raise invalid(f"input items of type {other!r} are not known to the model alone", "input")
    return messages


def _texts(content: object) -> list[Json]:
    """The parts of a tool's output."""
    parts = _content(content)
    if not isinstance(parts, list) or any(part["type"] != "text" for part in parts):
        raise invalid("the model reads outputs of tools as text only", "input", "unsupported_content")
    return parts


def _content(content: object) -> object:
    if not isinstance(content, list):
        return content
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in PARTS:
            parts.append({"type": "text", "text": part.get("text") or ""})
        elif kind == "input_image":
            parts.append({"type": "image_url", "image_url": {"url": part.get("image_url")}})
        else:
            raise invalid(f"the model reads text only, not {kind!r}", "input", "unsupported_content")
    return parts


def _tool(tool: object) -> Json:
    if not isinstance(tool, dict) or tool.get("type") != "function":
        kind = tool.get("type") if isinstance(tool, dict) else tool
        raise invalid(f"tools of type {kind!r} are the agent's; the model alone takes functions", "tools")
    function = {
        name: tool[name] for name in ("name", "description", "parameters", "strict") if tool.get(name) is not None
    }
    return {"type": "function", "function": function}


def allowed(tools: Sequence[Json], choice: object) -> tuple[Sequence[Json], object]:
    """The tools, and the choice among them; of a choice of type `allowed_tools`, only those that it names."""
    if not isinstance(choice, dict) or choice.get("type") != "allowed_tools":
        return tools, choice
    names = [one.get("name") for one in choice.get("tools") or () if isinstance(one, dict)]
    if odd := [name for name in names if name not in [tool.get("name") for tool in tools]]:
        raise invalid(f"tool_choice allows {odd[0]!r}, which is not in tools", "tool_choice")
    return [tool for tool in tools if tool.get("name") in names], choice.get("mode", "auto")


def _choice(choice: object) -> object:
    if isinstance(choice, dict) and choice.get("type") == "function":
        return {"type": "function", "function": {"name": choice.get("name")}}
    return choice


def _format(form: object) -> Json | None:
    if not isinstance(form, dict) or form.get("type") in (None, "text"):
        return None
    if form["type"] == "json_schema":
        schema = {
            name: form[name] for name in ("name", "schema", "strict", "description") if form.get(name) is not None
        }
        return {"type": "json_schema", "json_schema": schema}
    return {"type": form["type"]}


class PlainWriter:
    """Turns the chunks of a chat completion into streaming events of its resource."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._open: str | int | None = None
        """Kind of the open item: "content", "reasoning", or the index of a tool call."""
        self._text: list[str] = []
        self._finish = "stop"
        self._usage = ServedUsage()
        self._chunks = 0

    @property
    def tokens(self) -> int:
        """Tokens read and sampled; before the end, one per chunk."""
        return self._usage.input_tokens + self._usage.output_tokens or self._chunks

    def take(self, chunk: Json) -> list[Json]:
        """The events of a chunk; raises ApiError for a chunk with an error of vLLM."""
        if error := chunk.get("error"):
            raise ApiError(500, "server_error", str(error.get("message") or error))
        if usage := chunk.get("usage"):
            self._usage = ServedUsage(
                input_tokens=usage["prompt_tokens"], output_tokens=usage.get("completion_tokens") or 0
            )
        self._chunks += 1
        events: list[Json] = []
        for choice in chunk.get("choices") or ():
            delta = choice["delta"]
            for name in ("reasoning", "content"):
                if text := delta.get(name):
                    events += self._say(name, text)
            for call in delta.get("tool_calls") or ():
                events += self._call(call)
            self._finish = choice.get("finish_reason") or self._finish
        return events

    def end(self, now: int, version: int) -> list[Json]:
        """Ends the response. version: weight version."""
        self._resource.sampled_by((version,))
        status = "incomplete" if self._finish == "length" else "completed"
        closed = self._close(status)
        if self._finish == "length":
            return [*closed, self._resource.leave_incomplete(self._usage, "max_output_tokens")]
        return [*closed, self._resource.complete(self._usage, now)]

    def fail(self, code: str, message: str) -> list[Json]:
        return [*self._close("incomplete"), self._resource.fail(code, message)]

    def _say(self, name: str, text: str) -> list[Json]:
        opened: list[Json] = []
        if self._open != name:
            opened = self._close("completed")
            if name == "content":
                opened += self._resource.add_message()
            else:
                opened += self._resource.add_reasoning()
            self._open, self._text = name, []
        self._text.append(text)
        return [*opened, self._resource.text(text) if name == "content" else self._resource.reason(text)]

    def _call(self, call: Json) -> list[Json]:
        function, opened = call.get("function") or {}, []
        if self._open != call["index"]:
            opened = self._close("completed")
            fields = {"status": "in_progress", "call_id": call.get("id") or "", "name": "", "arguments": ""}
            opened.append(self._resource.add("function_call", "fc", fields | {"name": function.get("name") or ""}))
            self._open, self._text = call["index"], []
        if not (text := function.get("arguments")):
            return opened
        self._text.append(text)
        return [*opened, self._resource.of_item("response.function_call_arguments.delta", delta=text)]

    def _close(self, status: str) -> list[Json]:
        if self._open is None:
            return []
        name, text, self._open = self._open, "".join(self._text), None
        item = self._resource.item
        match name:
            case "content":
                return self._resource.close_message(text, status)
            case "reasoning":
                return self._resource.close_reasoning(text)
            case _:
                item.update(status=status, arguments=text)
                done = self._resource.of_item("response.function_call_arguments.done", arguments=text)
                return [done, self._resource.item_done()]
