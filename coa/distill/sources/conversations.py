"""Groups calls of a model into conversations: a call continues the conversation whose messages its own begin with.

call 1   system, question                                 -> search(...)      conversation 1
call 2   system, question, search(...), result            -> ask_expert(...)  conversation 1
call 3   other system, what the expert was asked          -> text             conversation 2
call 4   system, question, ..., ask_expert(...), result   -> text             conversation 1
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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
    """Calls of which each continues the one before."""

    calls: list[ModelCall] = field(default_factory=list)
    unheard: Usage = field(default_factory=Usage)
    """Usage of replies that were asked for again, and so not continued."""

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
        """The messages between the reply of call `number` and the next reply; they include an echo of the former."""
        if number + 1 == len(self.calls):
            return ()
        return self.calls[number + 1].messages[len(self.calls[number].messages) :]


def conversations(calls: Sequence[ModelCall]) -> list[Conversation]:
    """The conversations of the calls, in the order in which they began."""
    found: list[Conversation] = []
    heads: list[tuple[object, ...]] = []
    """The messages of each conversation's last call."""
    for call in sorted(calls, key=lambda call: call.began):
        said = tuple(map(_key, call.messages))
        earlier = [n for n, head in enumerate(heads) if said[: len(head)] == head]
        if not earlier:
            found.append(Conversation([call]))
            heads.append(said)
            continue
        n = max(earlier, key=lambda n: (len(heads[n]), n))
        if len(said) == len(heads[n]):  # the same request again: the earlier reply was not used
            found[n].unheard += found[n].calls.pop().usage
        found[n].calls.append(call)
        heads[n] = said
    return found


def _key(message: Message) -> tuple[object, ...]:
    return message.get("role"), text_of(message.get("content")).strip(), message.get("tool_call_id")
