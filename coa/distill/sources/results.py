"""Reads the messages that an agent received after each of its replies: tool results, or a user's messages."""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from coa.distill.sources.calls import Conversation, echoes
from coa.distill.sources.foreign import Reason, Refused
from coa.distill.sources.frames import CALLING, Seen, is_marked, read_seen
from coa.distill.sources.messages import TOOL, USER, Message, ToolUse, json_in
from coa.distill.sources.programs import fill
from coa.distill.sources.replies import responses_in, unwrapped
from coa.json_object import JsonView

_TRANSFERRED = re.compile(r"(?:Successfully t|T)ransferred (?:back )?to (?P<agent>[^\n,.]++)")
"""The message by which LangGraph and AutoGen tell an agent of a handoff."""


def texts_of(arguments: JsonView | str) -> list[str]:
    """The texts among the arguments of a call, single-spaced."""
    values = [arguments] if isinstance(arguments, str) else arguments.values()
    return [" ".join(value.split()) for value in values if isinstance(value, str) and value.strip()]


def results_of(one: Conversation, n: int) -> Iterator[tuple[ToolUse, str | None]]:
    """Each tool call of a reply and its result; raises Refused if the results cannot be separated."""
    call, after = one.calls[n], one.after(n)
    uses = call.uses
    by_tools = [message for message in after if message.role == TOOL]
    if by_tools or (text := said_by_user(one, n)) is None:
        echo = next((message.uses for message in after if message.uses and echoes(call.reply, message)), uses)
        yield from zip(uses, matched(echo, by_tools), strict=True)
        return
    if len(uses) == 1:
        yield uses[0], seen_in(text).result
    elif parts := _parts(text, len(uses)):
        yield from zip(uses, parts, strict=True)
    elif is_marked(text) and any(CALLING in message.text for message in after):
        results = told_apart([use.id for use in uses], seen_in(text))
        yield from ((use, results[use.id]) for use in uses)
    else:
        raise Refused(Reason.RESULTS_IN_ONE)


def matched(uses: Sequence[ToolUse], results: Sequence[Message]) -> list[str | None]:
    """The result of each call, None for a call without one. Results belong to calls by their ids; those of calls that
    share an id, or have none, belong to them by the tool's name, if they tell it, and in the order of the calls. So do
    results of as many calls if no id of theirs is that of a call."""
    found: list[str | None] = [None] * len(uses)
    left = list(range(len(uses)))
    if len(results) == 1 and len(uses) > 1:
        results = [replace(results[0], text=text) for text in _parts(results[0].text, len(uses))] or results
    ids = {use.id for use in uses}
    renamed = len(results) == len(uses) and not any(result.answers in ids for result in results)
    for result in results:
        fits = [k for k in left if uses[k].id == result.answers]
        fits = fits or [k for k in left if renamed or not (uses[k].id and result.answers)]
        named = [k for k in fits if uses[k].name == result.name]
        if fits:
            k = (named or fits)[0]
            found[k] = unwrapped(result.text)
            left.remove(k)
        elif unwrapped(result.text) not in found:
            raise Refused(Reason.NO_CALL, result.text[:80])
    return found


def handed_to(name: str, result: str | None, *, elsewhere: bool) -> str | None:
    """The agent to which a call hands its conversation, by the call's result; "" if it stays with the same one, or goes
    on elsewhere, without a result; None for another call."""
    match json_in(result or ""):
        case {"assistant": str(agent), **rest} if not rest:
            return agent.lower()
    if not name.startswith(("transfer_to_", "transfer_back_to_")):
        return None
    if result is None or result.startswith("Multiple handoffs detected"):
        return "" if result or elsewhere else None
    told = _TRANSFERRED.match(result)
    return told["agent"].lower() if told else None


def _parts(text: str, number: int) -> list[str]:
    """The results in one text, if it is a JSON list of that many, or has each in its tags; none otherwise."""
    if len(found := responses_in(text)) == number:
        return found
    parts = json_in(text)
    if not isinstance(parts, list) or len(parts) != number:
        return []
    return [part if isinstance(part, str) else json.dumps(part, ensure_ascii=False) for part in parts]


def told_apart(ids: list[str], seen: Seen) -> dict[str, str]:
    """The results by call id, which smolagents joins with line breaks in the order of the ids. They can be separated if
    each is one line or begins with smolagents' heading; otherwise, or if a call failed, raises Refused."""
    lines = [part for n in range(len(ids)) for part in ("\n", n)][1:]
    found = None if seen.error or len(set(ids)) < len(ids) else fill(lines, seen.text)
    if found is None:
        raise Refused(Reason.RESULTS_IN_ONE, seen.error.partition("\n")[0][:200])
    return {name: found[n] for n, name in enumerate(sorted(ids))}


def said_by_user(one: Conversation, n: int) -> str | None:
    """The user's messages after a reply, and the results after one that calls no tool in the protocol's form; None if
    there are none."""
    roles = (USER,) if one.calls[n].uses else (USER, TOOL)
    texts = [message.text for message in one.after(n) if message.role in roles]
    return "\n".join(texts) if texts else None


def seen_in(text: str) -> Seen:
    """Parses the results that an agent saw from a user's message."""
    return read_seen(unwrapped(text))


def seen_after(one: Conversation, n: int) -> Seen | None:
    """Parses the results in the user's messages after a reply; None if there are none."""
    text = said_by_user(one, n)
    return None if text is None else seen_in(text)


def is_observed(one: Conversation, n: int) -> bool:
    """Whether the user's message after a reply is marked as its result."""
    text = said_by_user(one, n)
    return text is not None and is_marked(text)
