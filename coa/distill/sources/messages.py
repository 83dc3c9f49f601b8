"""Reads chat messages, in any of the forms in which endpoints and data sets write them, into one form.

content: "a text"                           text
content: [{"type": "text", ...}, ...]       text, thoughts, tool calls and results of the parts
tool_calls, function_call, tool_use parts   tool calls
reasoning_content, thinking parts, ...      the thought
role tool, role function, tool_result parts a result, with the id of its call if it names one
any other part, such as a picture           is named, so that its conversation can be refused
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from coa.distill.sources.foreign import Reason, Refused
from coa.json_object import JsonView

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
ROLES: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys((USER, "human", "prompter"), USER),
        **dict.fromkeys((ASSISTANT, "gpt", "chatgpt", "model", "ai", "bot", "bing", "bard"), ASSISTANT),
        **dict.fromkeys((TOOL, "function", "observation", "ipython", "environment"), TOOL),
        **dict.fromkeys(("function_response", "tool_response"), TOOL),
        **dict.fromkeys((SYSTEM, "developer"), SYSTEM),
    }
)
"""The four roles by all of their names."""
_REASONING = ("reasoning_content", "reasoning", "thinking")
"""Fields in which endpoints send the model's reasoning."""
_BLOCKS = ("reasoning_details", "thinking_blocks")
"""Fields with lists of parts of the model's reasoning."""
_TEXTS = (None, "text", "input_text", "output_text", "reasoning_text", "summary_text")
_PARTS = ("refusal", "thinking", "reasoning", "redacted_thinking", "tool_use", "tool_result")
"""Types of the parts of a content that are read, and of those that are texts."""
ATTACHED = ("image", "images", "audio", "audios", "video", "videos", "attachments", "files")
"""Fields of messages, and columns of rows, with what is no text."""
_CHANGING = re.compile(
    r"\b(?:(?:request|trace|correlation)[ _-]?id['\": =(]*+[\w:.-]++|req[_-][\w-]++"
    r"|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[a-z]{2,12}[_-](?=[a-z]*\d)[\w-]++"
    r"|(?:mon|tues|wednes|thurs|fri|satur|sun)day|mon|tue|wed|thu|fri|sat|sun|january|february|march|april|may|june"
    r"|july|august|september|october|november|december|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec|am|pm"
    r"|(?:\d++[a-f]|[a-f]++\d)[0-9a-f]*+)\b|(?:\d++(?:[.:]\d++)*+(?:st|nd|rd|th|ms|s|m|h)?)++",
    re.IGNORECASE,
)
"""Parts that systems write anew into texts that are otherwise the same: times, numbers, ids."""


@dataclass(frozen=True, slots=True)
class ToolUse:
    """A tool call of a message."""

    name: str
    arguments: JsonView | str
    """The arguments, as an object or as JSON text."""
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    role: str
    text: str = ""
    thought: str = ""
    """The model's reasoning beside its text."""
    uses: tuple[ToolUse, ...] = ()
    answers: str = ""
    """The id of the call whose result this is; empty if it names none."""
    name: str = ""
    """The name of the tool whose result this is, or of the author."""
    attached: str = ""
    """The kind of a part that is no text, such as a picture; empty if there is none."""


def read_messages(raw: object) -> tuple[Message, ...]:
    """Raises Refused if they are no list of messages."""
    if not isinstance(raw, list | tuple):
        raise Refused(Reason.UNREADABLE, f"its messages are {kind_of(raw)}, not a list")
    return tuple(message for number, one in enumerate(raw, start=1) for message in read_message(one, number))


def read_message(raw: object, number: int = 1) -> Iterator[Message]:
    """The message; if it holds tool results as parts, each of them is a message, and so is the rest. Raises Refused."""
    if not isinstance(raw, Mapping):
        raise Refused(Reason.UNREADABLE, f"message {number} is {kind_of(raw)}, not an object")
    role = raw.get("role")
    if not isinstance(role, str):
        raise Refused(Reason.UNREADABLE, f"message {number} is {kind_of(raw)}, without a role")
    if (role := role_of(role)) == "":
        raise Refused(Reason.UNREADABLE, f"message {number} has the role {raw['role']!r}, which is not known")
    content = raw.get("content")
    parts = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    results = [part for part in parts if part.get("type") == "tool_result"]
    for part in results:
        yield _with_content(Message(TOOL, answers=_text(part.get("tool_use_id"))), part.get("content"))
    message = Message(
        role,
        thought=reasoning_of(raw),
        uses=tuple(_uses(raw, parts)),
        answers=_text(raw.get("tool_call_id")),
        name=_text(raw.get("name")),
    )
    message = _with_content(message, content)
    if attached := next((name for name in ATTACHED if raw.get(name)), ""):
        message = replace(message, attached=attached)
    if not results or message.text or message.uses or message.attached:
        yield message


def system_of(messages: Iterable[Message]) -> str:
    """The texts of the system's messages; raises Refused for one that is more than a text."""
    system = [message for message in messages if message.role == SYSTEM]
    if attached := next((message.attached for message in system if message.attached), ""):
        raise Refused(Reason.NOT_TEXT, attached)
    return "\n".join(message.text for message in system)


def _with_content(message: Message, content: object) -> Message:
    if content is not None and message.role in (TOOL, ASSISTANT) and not _is_content(content):
        content = json.dumps(content, ensure_ascii=False, default=str)  # a result that is an object or a number
    return replace(message, text=text_of(content), attached=other_part(content))


def role_of(name: str) -> str:
    """The role by any of its names; "" for another name."""
    return ROLES.get(name.lower().replace("-", "_"), "")


def _is_content(value: object) -> bool:
    """Whether a value is a text, a part, or a list of these."""
    parts = value if isinstance(value, list) else [value]
    return all(isinstance(part, str) or (isinstance(part, Mapping) and {"type", "text"} & set(part)) for part in parts)


def other_part(content: object) -> str:
    """The kind of the first part that is none of those above, such as a picture; "" if there is none."""
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, str | Mapping | None):
            return kind_of(part)
        if isinstance(part, Mapping):
            kind, known = part.get("type"), isinstance(part.get("text") or "", str)
            if kind not in _PARTS and not (kind in _TEXTS and known and (kind or "text" in part)):
                return str(kind or ", ".join(map(str, part)))
    return ""


def text_of(content: object) -> str:
    """The text of a message's content, which is a text or a list of parts, some of them texts."""
    texts = map(_part_text, content if isinstance(content, list) else [content])
    return "\n".join(filter(None, texts))


def _part_text(part: object) -> str:
    match part:
        case str():
            return part
        case {"type": "refusal", "refusal": str(text)}:
            return text
        case Mapping() if part.get("type") in _TEXTS:
            return _text(part.get("text"))
    return ""


def reasoning_of(message: JsonView) -> str:
    """The model's reasoning, which endpoints send in a separate field or as parts of the content; "" for none."""
    content = message.get("content")
    objects = [part for part in content if isinstance(part, Mapping)] if isinstance(content, list) else []
    if found := _thoughts(part for part in objects if part.get("type") in ("thinking", "reasoning")):
        return found
    if found := next(filter(None, (_text(message.get(name)) for name in _REASONING)), ""):
        return found
    return next((found for name in _BLOCKS if (found := _thoughts(message.get(name)))), "")


def _thoughts(parts: object) -> str:
    """The texts of parts of reasoning, each of which is in a field `thinking`, `text` or `summary`."""
    names = ("thinking", "text", "summary")
    objects = (part for part in parts if isinstance(part, Mapping)) if isinstance(parts, Iterable) else ()
    return "\n".join(filter(None, (next(filter(None, map(text_of, map(one.get, names))), "") for one in objects)))


def _uses(raw: JsonView, parts: Iterable[JsonView]) -> Iterator[ToolUse]:
    calls = _parsed(raw.get("tool_calls")) or ()
    for call in map(_parsed, calls if isinstance(calls, list | tuple) else [calls]):
        if not isinstance(call, Mapping):
            raise Refused(Reason.UNREADABLE, f"a tool call is {kind_of(call)}, not an object")
        found = next((call[name] for name in ("function", "custom") if isinstance(call.get(name), Mapping)), call)
        yield _use(found, _text(call.get("id")))
    if not calls and isinstance(legacy := _parsed(raw.get("function_call")), Mapping):
        yield _use(legacy, "")
    for part in parts:
        if part.get("type") == "tool_use":
            yield _use(part, _text(part.get("id")))


def _parsed(value: object) -> object:
    """A value that some data sets write as JSON text."""
    found = json_in(value) if isinstance(value, str) else value
    return value if found is None and value != "null" else found


def json_in(text: str | bytes) -> object:
    """The value of JSON text; None for another text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _use(found: JsonView, key: str) -> ToolUse:
    arguments = next((found[name] for name in ("arguments", "parameters", "input") if found.get(name) is not None), "")
    if isinstance(arguments, Mapping):
        # Columns of data sets give each call the arguments of all tools, most of them null.
        arguments = {name: value for name, value in arguments.items() if value is not None}
    return ToolUse(_text(found.get("name")), arguments if isinstance(arguments, dict) else _text(arguments), key)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def kind_of(value: object) -> str:
    """A JSON value in a few words, for messages."""
    match value:
        case None:
            return "missing"
        case str():
            return f"the text {value[:40]!r}"
        case Mapping():
            return f"an object with {', '.join(map(str, value)) or 'nothing in it'}"
        case list():
            return "a list"
    return f"the value {value!r}"[:60]


@lru_cache(maxsize=1 << 12)
def without_changing(text: str) -> str:
    """The text with "0" in place of numbers, dates, times and ids."""
    return _CHANGING.sub("0", text).strip()
