"""What came back to an agent after each of its replies: results of tools, or a user's words."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from coa.imports.conversations import Conversation
from coa.imports.foreign import Reason, Refused
from coa.imports.messages import text_of, unwrapped
from coa.imports.programs import shown_by

_OBSERVATION = re.compile(r"\s*(?:Call id: \S+\s*)?(?:Observation:|Error:)\s*")
"""What some frameworks write before a tool's result that they send as a user's message."""


def texts_of(arguments: Mapping[str, Any] | str) -> list[str]:
    values = [arguments] if isinstance(arguments, str) else arguments.values()
    return [" ".join(value.split()) for value in values if isinstance(value, str) and value.strip()]


def results_of(one: Conversation, n: int) -> Iterator[tuple[str, str, str | None]]:
    """Name, arguments and result of each tool call of a reply; raises Refused where results cannot be told apart."""
    asked = one.calls[n].tool_calls
    after = one.after(n)
    by_tools = [message for message in after if message.get("role") == "tool"]
    by_id = {message.get("tool_call_id"): text_of(message.get("content")) for message in by_tools}
    if not by_id and (told := observed(one, n)) is not None:
        if len(asked) > 1:
            raise Refused(Reason.RESULTS_IN_ONE)
        by_id = {asked[0].get("id"): told}
    for call in asked:
        function = call.get("function") or {}
        yield str(function.get("name")), function.get("arguments") or "", by_id.get(call.get("id"))


def observed(one: Conversation, n: int) -> str | None:
    """What the user's messages after a reply say; None where there is none."""
    told = told_by_user(one, n)
    return None if told is None else _OBSERVATION.sub("", unwrapped(told).strip()).strip()


def told_by_user(one: Conversation, n: int) -> str | None:
    told = [text_of(message.get("content")) for message in one.after(n) if message.get("role") == "user"]
    return "\n".join(told) if told else None


def is_observed(one: Conversation, n: int) -> bool:
    """Whether what the user said after a reply is marked as the result of it."""
    told = told_by_user(one, n)
    return told is not None and _OBSERVATION.match(told) is not None


def printed_by(one: Conversation, n: int) -> str | None:
    """The result of a reply that is a program."""
    told = told_by_user(one, n)
    if told is None:
        return None
    return shown_by(_OBSERVATION.sub(lambda found: "Error: " if "Error" in found[0] else "", told, count=1))
