"""Reads chat completions, and assembles streamed ones from their pieces.

    data: {"choices": [{"delta": {"role": "assistant", "content": "Ye"}}]}
    data: {"choices": [{"delta": {"content": "s"}, "finish_reason": "stop"}]}     ->  {"content": "Yes", ...}, "stop"
    data: [DONE]

If a request asks for several choices, the first is kept.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DATA = b"data:"
END = b"[DONE]"
_GROWING = ("content", "reasoning_content", "reasoning", "refusal")
"""Texts of a message that come in pieces."""


@dataclass(frozen=True, slots=True)
class Completion:
    message: Mapping[str, Any] | None
    """The chat message: role, content, tool_calls; None if nothing arrived."""
    finish: str = ""
    """The finish reason: "stop", "tool_calls", "length"; empty if unknown."""
    usage: Mapping[str, Any] | None = None
    model: str = ""


def read_completion(body: bytes) -> Completion:
    """Reads a reply that is not streamed; raises ValueError if it is no chat completion."""
    try:
        reply = json.loads(body)
        choice = reply["choices"][0]
        message = choice["message"]
    except (TypeError, LookupError, RecursionError) as error:
        raise ValueError("not a chat completion") from error
    if not isinstance(message, dict):
        raise ValueError("not a chat completion")
    return Completion(message, _text(choice.get("finish_reason")), _counts(reply), _text(reply.get("model")))


class Assembly:
    """Assembles a streamed reply: `feed` takes its bytes, cut anywhere; `completion` is the reply so far."""

    def __init__(self) -> None:
        self.faulty = False
        """Whether the stream contained something that is no part of a chat completion, such as an error."""
        self._rest: list[bytes] = []
        self._ended = False
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._role = ""
        self._finish, self._usage, self._model = "", None, ""

    def feed(self, data: bytes) -> None:
        first, *rest = data.split(b"\n")
        self._rest.append(first)
        for line in rest:
            self._line(b"".join(self._rest).strip())
            self._rest = [line]

    @property
    def whole(self) -> bool:
        """Whether the stream is complete."""
        return self._ended or bool(self._finish)

    @property
    def completion(self) -> Completion:
        message: dict[str, Any] | None = None
        if self._role or self._texts or self._calls:
            message = {"role": self._role or "assistant", "content": None}
            message |= {name: "".join(pieces) for name, pieces in self._texts.items()}
            if self._calls:
                message["tool_calls"] = [_joined(call) for _, call in sorted(self._calls.items())]
        return Completion(message, self._finish, self._usage, self._model)

    def _line(self, line: bytes) -> None:
        """Reads a line; comments, event names and blank lines are ignored."""
        if not line.startswith(DATA):
            return
        data = line.removeprefix(DATA).strip()
        if data == END:
            self._ended = True
            return
        try:
            self._chunk(json.loads(data))
        except (ValueError, TypeError, AttributeError, LookupError, RecursionError):
            self.faulty = True

    def _chunk(self, chunk: dict[str, Any]) -> None:
        if chunk.get("error"):
            self.faulty = True
        self._model = _text(chunk.get("model")) or self._model
        self._usage = _counts(chunk) or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) != 0:
                continue
            self._finish = _text(choice.get("finish_reason")) or self._finish
            delta = choice.get("delta") or {}
            self._role = _text(delta.get("role")) or self._role
            for name in _GROWING:
                if isinstance(piece := delta.get(name), str):
                    self._texts.setdefault(name, []).append(piece)
            for call in delta.get("tool_calls") or ():
                self._call(call)

    def _call(self, piece: dict[str, Any]) -> None:
        """Adds a piece of a tool call. If the server does not number calls, each new id begins a new call."""
        last = max(self._calls, default=-1)
        index = piece.get("index")
        if isinstance(index, str) and index.isdecimal():
            index = int(index)
        if not isinstance(index, int):
            starts = last < 0 or (piece.get("id") and piece["id"] != self._calls[last]["id"])
            index = last + 1 if starts else last
        call = self._calls.setdefault(index, {"id": "", "name": "", "arguments": []})
        function = piece.get("function") or {}
        call["id"] = call["id"] or _text(piece.get("id"))
        call["name"] = call["name"] or _text(function.get("name"))
        call["arguments"].append(_text(function.get("arguments")))


def _joined(call: Mapping[str, Any]) -> dict[str, Any]:
    function = {"name": call["name"], "arguments": "".join(call["arguments"])}
    return {"id": call["id"], "type": "function", "function": function}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _counts(reply: Mapping[str, Any]) -> Mapping[str, Any] | None:
    usage = reply.get("usage")
    return usage if isinstance(usage, dict) else None
