"""Chat completions: reads replies, and assembles streamed ones from their pieces.

    data: {"choices": [{"delta": {"role": "assistant", "content": "Ye"}}]}
    data: {"choices": [{"delta": {"content": "s"}, "finish_reason": "stop"}]}     ->  {"content": "Yes", ...}, "stop"
    data: [DONE]

If a request asks for several choices, the first is kept.
"""

import json
from dataclasses import dataclass, field

from coa.distill.sources.messages import ATTACHED, json_in, other_part, reasoning_of, text_of
from coa.distill.sources.recorder.completion import Completion, RecordedRequest, call_of, text_in
from coa.distill.sources.recorder.events import Stream
from coa.json_object import Json, JsonView

_REASONING = ("reasoning_content", "reasoning")
_GROWING = ("content", *_REASONING, "refusal")
"""Texts of a message that come in pieces."""
_ABORTED = ("error", "abort")
"""Finish reasons of replies that the server broke off."""


def parse_request(request: Json) -> RecordedRequest:
    return RecordedRequest(request.get("messages"), request.get("tools"))


def read(reply: Json) -> Completion:
    """Reads a reply that is not streamed; raises LookupError, TypeError or ValueError if it is no chat completion."""
    choice = reply["choices"][0]
    message, finish = choice["message"], text_in(choice, "finish_reason")
    if not isinstance(message, dict):
        raise TypeError(message)
    if finish in _ABORTED:
        raise ValueError(f"the server broke it off: {finish}")
    return Completion(message, finish, _usage_in(reply) or None, text_in(reply, "model"))


@dataclass(slots=True)
class _CallPieces:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether the arguments are complete."""
        return isinstance(json_in("".join(self.arguments)), dict)


class ChatStream(Stream):
    def __init__(self) -> None:
        super().__init__()
        self._texts: dict[str, list[str]] = {}
        self._calls: list[_CallPieces] = []
        self._numbers: dict[int, _CallPieces] = {}
        """The call that the last piece with this number belongs to."""
        self._function: _CallPieces | None = None
        """The call in the older form, `function_call`."""
        self._role = self._finish = self._model = ""
        self._usage: Json = {}
        self._parts: list[object] = []
        self._attached: Json = {}
        """Parts and fields of the message that are no text, such as pictures."""

    @property
    def completion(self) -> Completion:
        message: Json | None = None
        if self._role or self._texts or self._calls or self._function or self._parts:
            message = {"role": self._role or "assistant", "content": None}
            message |= {name: "".join(pieces) for name, pieces in self._texts.items()} | self._attached
            if self._parts:
                message["content"] = [*filter(None, [message["content"]]), *self._parts]
            if self._calls:
                message["tool_calls"] = [call_of(one.id, one.name, "".join(one.arguments)) for one in self._calls]
            if (one := self._function) is not None:
                message["function_call"] = {"name": one.name, "arguments": "".join(one.arguments)}
        return Completion(message, self._finish, self._usage or None, self._model)

    def take(self, name: str, chunk: Json) -> None:
        self._model = text_in(chunk, "model") or self._model
        self._count(_usage_in(chunk))
        for choice in chunk.get("choices") or ():
            self._count(_usage_in(choice))
            if choice.get("index") in (0, None, "0"):
                self._choice(choice)

    def _choice(self, choice: Json) -> None:
        delta = choice.get("delta") or choice.get("message") or {}
        self._role = text_in(delta, "role") or self._role
        for name in _GROWING:
            if isinstance(piece := delta.get(name), str):
                self._texts.setdefault(name, []).append(piece)
        if isinstance(delta.get("content"), list):
            self._parts += [part for part in delta["content"] if other_part(part)]
        self._attached |= {name: delta[name] for name in ATTACHED if delta.get(name)}
        # Texts in parts, and reasoning in another field than those above.
        text = text_of(delta["content"]) if isinstance(delta.get("content"), list) else ""
        thought = "" if any(isinstance(delta.get(name), str) for name in _REASONING) else reasoning_of(delta)
        for name, piece in (("content", text), ("reasoning_content", thought)):
            if piece:
                self._texts.setdefault(name, []).append(piece)
        for call in delta.get("tool_calls") or ():
            self._call(call)
        if isinstance(function := delta.get("function_call"), dict):
            self._function = self._function or _CallPieces()
            _grow(self._function, function)
        finish = text_in(choice, "finish_reason")
        if finish in _ABORTED:
            raise ValueError(f"the server broke it off: {finish}")
        self._finish = finish or self._finish

    def _call(self, piece: Json) -> None:
        """Adds a piece of a tool call to the call that it continues. Numbers and ids may be missing or repeated."""
        function = piece.get("function") or {}
        key, name, index = text_in(piece, "id"), text_in(function, "name"), piece.get("index")
        index = int(index) if isinstance(index, str) and index.isdecimal() else index
        call = self._continued(key, name, index if isinstance(index, int) else None)
        if call is not None and name and call.whole and function.get("arguments"):
            call = None  # a whole call, and another one
        if call is None:
            call = _CallPieces(key)
            self._calls.append(call)
        if isinstance(index, int):
            self._numbers[index] = call
        call.id = call.id or key
        _grow(call, function)

    def _continued(self, key: str, name: str, index: int | None) -> _CallPieces | None:
        """The call that a piece continues; None if it begins one."""
        last = self._calls[-1] if self._calls else None
        by_id = next((call for call in reversed(self._calls) if key and call.id == key), None)
        if index is not None and (numbered := self._numbers.get(index)) is not None:
            # vLLM has sent a new id with each piece; a call begins with its name, too.
            return by_id if key and numbered.id and key != numbered.id and (name or by_id) else numbered
        if index is not None:
            # The rest of a call may come under another number than its beginning.
            return None if name or (key and by_id is None) else by_id or last
        if key and (name or by_id):
            return by_id
        return last if last is None or not name or name == last.name or not last.name else None

    def _count(self, usage: Json) -> None:
        """Counts may come in several chunks, as totals so far, and with zeros in place of what another chunk has."""
        for name, value in usage.items():
            before = self._usage.get(name)
            self._usage[name] = max(before, value) if _number(before) and _number(value) else value


def _grow(call: _CallPieces, function: JsonView) -> None:
    name, arguments = text_in(function, "name"), function.get("arguments")
    if not call.name or (name != call.name and not any(call.arguments)):
        call.name += name
    call.arguments.append(json.dumps(arguments) if isinstance(arguments, dict) else text_in(function, "arguments"))


def _usage_in(fields: Json) -> Json:
    """The usage of a reply, chunk or choice, in any of the places where endpoints put it; empty for none."""
    other = fields.get("x_groq")
    usage = fields.get("usage") or (other.get("usage") if isinstance(other, dict) else None)
    return usage if isinstance(usage, dict) else {}


def _number(value: object) -> bool:
    return isinstance(value, int | float)
