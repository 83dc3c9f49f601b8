"""The conversations of a program's calls, and which recorded call a request continues.

A request continues a call whose messages and reply are the beginning of its own messages, in a form in which only what
a model reads counts: texts, tool calls with their arguments as JSON, not their ids.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import xxhash

from coa.agent.programs.tree import Call
from coa.json_object import Json

NAMES = ("id", "tool_call_id", "index", "type", "annotations", "audio", "refusal", "reasoning", "reasoning_content")
"""Fields of messages and of their parts that are left out: ids that a client makes up, what no template shows, and
thoughts, which clients leave out."""


def normal(message: Mapping[str, object]) -> str:
    """The message as JSON in a form in which equal messages are equal texts."""
    return json.dumps(_plain(message), sort_keys=True)


def _plain(value: object, key: str = "") -> object:
    match value:
        case Mapping():
            found = {name: _plain(one, name) for name, one in value.items() if name not in NAMES}
            return {name: one for name, one in found.items() if one not in (None, "", [])}
        case str():
            return _arguments(value) if key == "arguments" else value.strip()
        case bool() | int() | float() | None:
            return value
        case Iterable():
            parts = [_plain(one) for one in value]
            texts = [part["text"] for part in parts if isinstance(part, dict) and part.keys() == {"text"}]
            return "".join(texts) if key == "content" and len(texts) == len(parts) else parts
        case _:
            return str(value)


def _arguments(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


@dataclass(frozen=True, slots=True)
class Conversation:
    """The messages of a request, and the tools that it offers."""

    messages: tuple[str, ...]
    """Each in its normal form."""
    tools: str

    @classmethod
    def of(cls, messages: Iterable[Mapping[str, object]], tools: Sequence[Json] | None) -> "Conversation":
        return cls(tuple(map(normal, messages)), json.dumps(tools or [], sort_keys=True))

    def digests(self) -> list[int]:
        """Of the tools and the first n messages, for each n from 0 to all."""
        running = xxhash.xxh3_128(self.tools.encode())
        found = [running.intdigest()]
        for message in self.messages:
            running.update(f"\0{message}".encode())
            found.append(running.intdigest())
        return found


class Conversations:
    """The answered calls of an episode, by their conversations."""

    def __init__(self) -> None:
        self._answered: dict[int, Call] = {}

    def add(self, asked: Conversation, reply: Mapping[str, object], call: Call) -> None:
        """reply: the message that the program got."""
        whole = Conversation((*asked.messages, normal(reply)), asked.tools)
        self._answered[whole.digests()[-1]] = call

    def continued(self, asked: Conversation) -> tuple[int, Call] | None:
        """The latest call of which `asked` is the longest continuation, and the place of its reply among the
        messages; None if it continues none."""
        for number, digest in reversed([*enumerate(asked.digests())]):
            if (call := self._answered.get(digest)) is not None:
                return number - 1, call
        return None
