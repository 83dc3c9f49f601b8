"""Recorded calls of a model, and conversations of these."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from coa.distill.sources.frames import OBSERVATION, is_marked, plan_in, without_next
from coa.distill.sources.messages import ASSISTANT, USER, Message, ToolUse
from coa.distill.sources.replies import split_thinking, written_calls
from coa.distill.sources.tools import as_arguments
from coa.usage import Usage


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call that succeeded."""

    task: str
    began: float
    ended: float
    model: str
    system: str
    """The texts of the system's messages."""
    messages: tuple[Message, ...]
    """The other messages."""
    reply: Message
    finish: str
    usage: Usage

    @property
    def uses(self) -> tuple[ToolUse, ...]:
        """The tool calls of the reply, those in its text included; raises Refused (see `written_calls`)."""
        written = None if self.reply.uses else written_calls(self.reply.text)
        return self.reply.uses if written is None else written.uses


@dataclass(slots=True)
class Conversation:
    """Calls, each of which continues the one before."""

    calls: list[ModelCall] = field(default_factory=list)
    shared: int = 0
    """The number of the first calls that an earlier conversation has, too; their usage counts there."""
    tree: int = 0
    """The number of the first request, which is the same for all branches."""
    cut: bool = False
    """Whether a request lacks the beginning of its conversation."""
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
        return self.calls[self.shared].began

    @property
    def ended(self) -> float:
        return self.calls[-1].ended

    @property
    def opening(self) -> str:
        """The user's messages before the first reply."""
        return "\n\n".join(message.text for message in self.calls[0].messages if message.role == USER)

    @property
    def attached(self) -> str:
        """The kind of the first part of a message that is no text; "" if there is none."""
        messages = (*self.calls[-1].messages, self.calls[-1].reply, *self.closing)
        return next((message.attached for message in messages if message.attached), "")

    def after(self, number: int) -> Sequence[Message]:
        """The messages between the reply of call `number` and the next reply; they include an echo of the first reply,
        but no plan that was made in between."""
        last = number + 1 == len(self.calls)
        said = self.calls[number].messages
        following = self.closing if last else since(said, self.calls[number + 1].messages, self.calls[number].reply)
        planned = (n for n, message in enumerate(following) if plan_of(message) is not None)
        return following[: next(planned, len(following))]


def plan_of(message: Message) -> str | None:
    """The plan that a message shows to its author; None for another message."""
    return plan_in(message.text) if message.role == ASSISTANT else None


def since(earlier: Sequence[Message], later: Sequence[Message], reply: Message) -> list[Message]:
    """The messages of a request that are not in an earlier one. If the last message grew, since some systems append to
    it what follows a reply, the result begins with the added text."""
    following, n = list(later[len(earlier) :]), len(earlier) - 1
    if n >= 0 and (added := grown_by(earlier[n], later[n], reply)):
        following.insert(0, Message(later[n].role, without_next(added)))
    elif following and (added := observed_in(following[0], reply)):
        following.insert(1, Message(USER, without_next(added)))
    return following


def grown_by(before: Message, after: Message, reply: Message) -> str:
    """Returns what an agent's loop appended to a message of its last request: the result of the reply, after the reply
    itself or alone. "" if the message did not grow so."""
    old, new = before.text.strip(), after.text.strip()
    if before.role != after.role or len(new) <= len(old) or not new.startswith(old):
        return ""
    added, said = new[len(old) :].strip(), reply.text.strip()
    if said and added.startswith(said):
        added = added[len(said) :].strip()
    return added if is_marked(added) else ""


def echoes(reply: Message, message: Message) -> bool:
    """Whether a message of a request is the reply of an earlier one; loops of agents may leave out its reasoning, its
    text beside tool calls, or the calls, or write these into the text."""
    if message.role != ASSISTANT:
        return False
    if message.uses:
        return uses_of(reply) == uses_of(message)
    said, text = visible(reply), visible(message)
    if said and (text.startswith(said) if reply.uses else text == said):
        return True
    return bool(observed_in(message, reply))


def observed_in(message: Message, reply: Message) -> str:
    """The result that a loop (CrewAI's) appended to a reply in its echo; "" for none."""
    said, text = visible(reply).removesuffix(OBSERVATION).rstrip(), visible(message)
    added = text[len(said) :].strip() if said and message.role == ASSISTANT and text.startswith(said) else ""
    return added if is_marked(added) else ""


def visible(message: Message) -> str:
    return split_thinking(message.text)[1].strip()


def uses_of(message: Message) -> tuple[tuple[str, str], ...]:
    return tuple((use.name, json.dumps(as_arguments(use.arguments), sort_keys=True)) for use in message.uses)
