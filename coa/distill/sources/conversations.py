"""Groups calls of a model into conversations: a call continues a conversation if its messages begin with those of it.

call 1   system, question                                 -> search(...)      conversation 1
call 2   system, question, search(...), result            -> ask_expert(...)  conversation 1
call 3   other system, what the expert was asked          -> text             conversation 2
call 4   system, question, ..., ask_expert(...), result   -> text             conversation 1

Two kinds of calls of smolagents are no conversations: one that asks for a plan, which another conversation then shows,
and one that forces the answer of an agent that is out of steps, which holds the end of another conversation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coa.distill.sources.frames import before_forced, forces, is_marked, plan_in
from coa.distill.sources.messages import text_of
from coa.usage import Usage

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A recorded call that succeeded."""

    task: str
    began: float
    ended: float
    model: str
    messages: Sequence[Message]
    reply: Message
    finish: str
    usage: Usage

    @property
    def tool_calls(self) -> Sequence[Message]:
        return [call for call in self.reply.get("tool_calls") or () if isinstance(call, dict)]


@dataclass(slots=True)
class Conversation:
    """Calls, each of which continues the one before."""

    calls: list[ModelCall] = field(default_factory=list)
    unheard: Usage = field(default_factory=Usage)
    """Usage of replies that were not used, since the same request was sent again."""
    closing: Sequence[Message] = ()
    """The messages after the last reply, taken from a request that forced an answer."""
    forced: Usage = field(default_factory=Usage)
    """Usage of the requests that forced an answer."""
    plans: bool = False
    """Whether this is a request for a plan that another conversation then shows."""

    @property
    def began(self) -> float:
        return self.calls[0].began

    @property
    def ended(self) -> float:
        return self.calls[-1].ended

    @property
    def system(self) -> str:
        return "\n".join(
            text_of(message.get("content"))
            for message in self.calls[0].messages
            if message.get("role") in ("system", "developer")
        )

    @property
    def opening(self) -> str:
        """The user's messages before the first reply."""
        return "\n\n".join(
            text_of(message.get("content")) for message in self.calls[0].messages if message.get("role") == "user"
        )

    def after(self, number: int) -> Sequence[Message]:
        """The messages between the reply of call `number` and the next reply; they include an echo of the first reply,
        but no plan that was made in between."""
        said = self.calls[number].messages
        last = number + 1 == len(self.calls)
        following = self.closing if last else _since(said, self.calls[number + 1].messages)
        planned = (n for n, message in enumerate(following) if plan_of(message) is not None)
        return following[: next(planned, len(following))]


def plan_of(message: Message) -> str | None:
    """The plan that a message shows to its author; None for another message."""
    return plan_in(text_of(message.get("content"))) if message.get("role") == "assistant" else None


def _since(earlier: Sequence[Message], later: Sequence[Message]) -> list[Message]:
    """The messages of a request that are not in an earlier one. If the last message grew, since some systems append to
    it what follows an empty reply, the result begins with the added text."""
    following, n = list(later[len(earlier) :]), len(earlier) - 1
    before, after = text_of(earlier[n].get("content")).strip(), text_of(later[n].get("content"))
    if after.strip() != before:
        following.insert(0, {"role": later[n].get("role"), "content": after.strip()[len(before) :].strip()})
    return following


def conversations(calls: Sequence[ModelCall]) -> list[Conversation]:
    """The conversations of the calls, in the order in which they began."""
    found: list[Conversation] = []
    heads: list[tuple[Key, ...]] = []
    """The messages of each conversation's last call."""
    for call in sorted(calls, key=lambda call: call.began):
        said = tuple(map(_key, call.messages))
        if _forces(call) and (open_one := _stuck(found, heads, said)) is not None:
            asked = {"role": "user", "content": before_forced(text_of(call.messages[-1].get("content")))}
            ended = open_one.calls[-1].messages
            open_one.closing = _since(ended, [*ended[:1], *call.messages[1:-1], asked])
            open_one.forced += call.usage
            continue
        earlier = [n for n, head in enumerate(heads) if _goes_on(head, said)]
        if not earlier:
            found.append(Conversation([call]))
            heads.append(said)
            continue
        n = max(earlier, key=lambda n: (len(heads[n]), n))
        if said == heads[n]:  # a repeated request: the earlier reply was not used
            found[n].unheard += found[n].calls.pop().usage
        found[n].calls.append(call)
        heads[n] = said
    _mark_plans(found)
    return found


Key = tuple[object, str, object]


def _key(message: Message) -> Key:
    return message.get("role"), text_of(message.get("content")).strip(), message.get("tool_call_id")


def _goes_on(head: tuple[Key, ...], said: tuple[Key, ...]) -> bool:
    """Whether a request begins with all messages of an earlier one, the last of which may have grown by a marked
    result."""
    n = len(head) - 1
    if said[:n] != head[:n] or len(said) <= n:
        return False
    (role, before, key), (later_role, after, later_key) = head[n], said[n]
    grown = after.startswith(before) and is_marked(after[len(before) :])
    return (role, key) == (later_role, later_key) and (before == after or grown)


def _forces(call: ModelCall) -> bool:
    first, last = (text_of(call.messages[n].get("content")) for n in (0, -1)) if call.messages else ("", "")
    return forces(first, last)


def _stuck(
    found: Sequence[Conversation], heads: Sequence[tuple[Key, ...]], said: tuple[Key, ...]
) -> Conversation | None:
    """The conversation with whose messages, except the system's, a request that forces an answer begins."""
    ways = [n for n, head in enumerate(heads) if len(head) > 1 and _goes_on(head[1:], said[1:])]
    return found[max(ways, key=lambda n: len(heads[n]))] if ways else None


def _mark_plans(found: Sequence[Conversation]) -> None:
    shown = {plan for one in found for call in one.calls for message in call.messages if (plan := plan_of(message))}
    for one in found:
        one.plans = len(one.calls) == 1 and text_of(one.calls[0].reply.get("content")).strip() in shown
