"""Reads the messages that an agent received after each of its replies: tool results, or a user's messages."""

from collections.abc import Iterator, Mapping
from typing import Any

from coa.distill.sources.conversations import Conversation
from coa.distill.sources.foreign import Reason, Refused
from coa.distill.sources.frames import CALLING, Seen, is_marked, read_seen
from coa.distill.sources.messages import text_of, unwrapped
from coa.distill.sources.programs.holes import fill


def texts_of(arguments: Mapping[str, Any] | str) -> list[str]:
    """The texts among the arguments of a call, single-spaced."""
    values = [arguments] if isinstance(arguments, str) else arguments.values()
    return [" ".join(value.split()) for value in values if isinstance(value, str) and value.strip()]


def results_of(one: Conversation, n: int) -> Iterator[tuple[str, str, str | None]]:
    """Name, arguments and result of each tool call of a reply; raises Refused if the results cannot be separated."""
    asked = one.calls[n].tool_calls
    after = one.after(n)
    by_tools = [message for message in after if message.get("role") == "tool"]
    by_id = {str(message.get("tool_call_id")): text_of(message.get("content")) for message in by_tools}
    if not by_id and (text := said_by_user(one, n)) is not None:
        names = [str(call.get("id")) for call in asked]
        if len(asked) == 1:
            by_id = {names[0]: seen_in(text).result}
        elif is_marked(text) and any(CALLING in text_of(message.get("content")) for message in after):
            by_id = told_apart(names, seen_in(text))
        else:
            raise Refused(Reason.RESULTS_IN_ONE)
    for call in asked:
        function = call.get("function") or {}
        yield str(function.get("name")), function.get("arguments") or "", by_id.get(str(call.get("id")))


def told_apart(ids: list[str], seen: Seen) -> dict[str, str]:
    """The results by call id, which smolagents joins with line breaks in the order of the ids. They can be separated if
    each is one line or begins with smolagents' heading; otherwise, or if a call failed, raises Refused."""
    lines = [part for n in range(len(ids)) for part in ("\n", n)][1:]
    found = None if seen.error or len(set(ids)) < len(ids) else fill(lines, seen.text)
    if found is None:
        raise Refused(Reason.RESULTS_IN_ONE, seen.error.partition("\n")[0][:200])
    return {name: found[n] for n, name in enumerate(sorted(ids))}


def said_by_user(one: Conversation, n: int) -> str | None:
    """The user's messages after a reply; None if there are none."""
    texts = [text_of(message.get("content")) for message in one.after(n) if message.get("role") == "user"]
    return "\n".join(texts) if texts else None


def seen_in(text: str) -> Seen:
    """What an agent saw, from a user's message."""
    return read_seen(unwrapped(text))


def seen_after(one: Conversation, n: int) -> Seen | None:
    """What the user's messages after a reply show; None if there are none."""
    text = said_by_user(one, n)
    return None if text is None else seen_in(text)


def is_observed(one: Conversation, n: int) -> bool:
    """Whether the user's message after a reply is marked as its result."""
    text = said_by_user(one, n)
    return text is not None and is_marked(text)
