"""Reads what came back to an agent after each of its replies: results of tools, or a user's messages."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coa.distill.sources.conversations import Conversation
from coa.distill.sources.foreign import Reason, Refused
from coa.distill.sources.messages import text_of, unwrapped
from coa.distill.sources.programs import shown_by

_OBSERVATION = re.compile(r"\A\s*(?:Call id: \S+\s*)?(?:Observation:|Error:)\s*")
"""What some frameworks write before a tool's result that they send as a user's message."""


def texts_of(arguments: Mapping[str, Any] | str) -> list[str]:
    """The texts among the arguments of a call, single-spaced."""
    values = [arguments] if isinstance(arguments, str) else arguments.values()
    return [" ".join(value.split()) for value in values if isinstance(value, str) and value.strip()]


def results_of(one: Conversation, n: int) -> Iterator[tuple[str, str, str | None]]:
    """Name, arguments and result of each tool call of a reply; raises Refused if results cannot be text apart."""
    asked = one.calls[n].tool_calls
    after = one.after(n)
    by_tools = [message for message in after if message.get("role") == "tool"]
    by_id = {message.get("tool_call_id"): text_of(message.get("content")) for message in by_tools}
    if not by_id and (text := observed(one, n)) is not None:
        if len(asked) > 1:
            raise Refused(Reason.RESULTS_IN_ONE)
        by_id = {asked[0].get("id"): text}
    for call in asked:
        function = call.get("function") or {}
        yield str(function.get("name")), function.get("arguments") or "", by_id.get(call.get("id"))


def observed(one: Conversation, n: int) -> str | None:
    """The user's messages after a reply, without marks of an observation; None if there are none."""
    text = said_by_user(one, n)
    return None if text is None else _OBSERVATION.sub("", unwrapped(text).strip()).strip()


def said_by_user(one: Conversation, n: int) -> str | None:
    """The user's messages after a reply; None if there are none."""
    texts = [text_of(message.get("content")) for message in one.after(n) if message.get("role") == "user"]
    return "\n".join(texts) if texts else None


def is_observed(one: Conversation, n: int) -> bool:
    """Whether the user's message after a reply is marked as its result."""
    text = said_by_user(one, n)
    return text is not None and _OBSERVATION.match(text) is not None


def printed_by(one: Conversation, n: int) -> str | None:
    """The output of a reply that is a program."""
    text = said_by_user(one, n)
    if text is None:
        return None
    return shown_by(_OBSERVATION.sub(lambda found: "Error: " if "Error" in found[0] else "", text, count=1))
