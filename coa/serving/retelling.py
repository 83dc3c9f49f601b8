"""Compares a stream that another replica makes anew with the events that a client has, and passes on what is new.

    sent      data {"delta": "The "}   data {"delta": "mayor"}
    anew      data {"delta": "The ma"} data {"delta": "yor is"}    ──► data {"delta": " is"}

How a text is cut into deltas depends on the load, and each replica numbers and names its events. So two streams are
equal if their events are, once those with the same shape are joined: an event without its texts, numbers and names.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from coa.json_object import Json

TEXTS = ("content", "reasoning", "reasoning_content", "arguments", "text", "delta", "thinking", "partial_json")
"""Fields whose text comes in pieces."""
OWN = ("id", "created", "sequence_number", "usage", "system_fingerprint", "logprobs", "token_ids")
"""Fields that are each stream's own, or that depend on how a text is cut."""
NAMES = ("id", "created")
"""Those of them that the client has to see unchanged."""


class Diverged(Exception):
    """Another replica does not repeat what the client has read."""


@dataclass(slots=True)
class Part:
    """Events of the same shape, one after the other."""

    shape: str
    text: str


class Retelling:
    def __init__(self, sent: Iterable[bytes]) -> None:
        """sent: the events that the client has."""
        self._parts: list[Part] = []
        self._names: Json = {}
        self._number = -1
        """The last sequence number that the client has."""
        for event in map(_read, sent):
            if not self._names and event is not None:
                self._names = {name: event[1][name] for name in NAMES if name in event[1]}
            if event is not None:
                self._number = event[1].get("sequence_number", self._number)
                _join(self._parts, *_parted(event[1]))
        self._at = self._read = 0
        """The part that is compared, and how much of its text was repeated."""
        self._met = False
        """Whether an event of this part has come."""

    def take(self, raw: bytes) -> bytes:
        """Returns the part of an event that the client has not got; raises Diverged."""
        if (event := _read(raw)) is None:  # a comment, or the end
            return raw if self._at == len(self._parts) else b""
        head, value = event
        shape, text = _parted(value)
        if self._at == len(self._parts):
            return self._rename(head, value)
        part = self._parts[self._at]
        if shape != part.shape and self._met and self._read == len(part.text):
            self._at, self._read, self._met = self._at + 1, 0, False
            return self.take(raw)
        if not text and shape != part.shape and self._at and shape == self._parts[self._at - 1].shape:
            return b""  # an empty piece of the text before
        rest = part.text[self._read :]
        if shape != part.shape or not (rest.startswith(text) or text.startswith(rest)):
            raise Diverged
        self._met = True
        self._read += min(len(rest), len(text))
        if self._at < len(self._parts) - 1:
            if len(text) > len(rest):
                raise Diverged
            if self._read == len(part.text):
                self._at, self._read, self._met = self._at + 1, 0, False
            return b""
        if len(text) <= len(rest):
            self._at += self._read == len(part.text)
            return b""
        self._at += 1
        return self._rename(head, _with_text(value, text[len(rest) :]))

    def _rename(self, head: bytes, value: Json) -> bytes:
        """The event with the names and the numbers of the stream that the client has."""
        value = value | {name: told for name, told in self._names.items() if name in value}
        if "sequence_number" in value:
            self._number += 1
            value["sequence_number"] = self._number
        return head + json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode() + b"\n\n"


def _read(raw: bytes) -> tuple[bytes, Json] | None:
    """Splits an event into the bytes before its JSON and the JSON; None for one without JSON."""
    head, mark, data = raw.partition(b"data: ")
    return (head + mark, json.loads(data)) if mark and data.startswith(b"{") else None


def _join(parts: list[Part], shape: str, text: str) -> None:
    if parts and parts[-1].shape == shape:
        parts[-1].text += text
    else:
        parts.append(Part(shape, text))


def _parted(value: Json) -> tuple[str, str]:
    """The shape of an event, and its text."""
    texts: list[str] = []
    shape = json.dumps(_shape(value, texts), sort_keys=True)
    return shape, "".join(texts)


def _shape(value: object, texts: list[str]) -> object:
    match value:
        case dict():
            shape: Json = {}
            for name, each in value.items():
                if name in TEXTS and isinstance(each, str):
                    texts.append(each)
                    shape[name] = ""
                elif name not in OWN:
                    shape[name] = _shape(each, texts)
            return shape
        case list():
            return [_shape(each, texts) for each in value]
        case _:
            return value


def _with_text(value: object, text: str) -> Any:
    """The event with another text; it has one."""
    match value:
        case dict():
            return {
                name: text if name in TEXTS and isinstance(each, str) and each else _with_text(each, text)
                for name, each in value.items()
            }
        case list():
            return [_with_text(each, text) for each in value]
        case _:
            return value
