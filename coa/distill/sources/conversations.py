"""Groups calls of a model into conversations: a call continues a conversation if its messages begin with those of it.

call 1   system, question                                 -> search(...)      conversation 1
call 2   system, question, search(...), result            -> ask_expert(...)  conversation 1
call 3   other system, what the expert was asked          -> text             conversation 2
call 4   system, question, ..., ask_expert(...), result   -> text             conversation 1
call 5   system, question, search(...), another result    -> text             conversation 3, a branch of 1

What is compared leaves out what agents write anew into each request, such as the time (`coa.distill.sources.tree`).

Two kinds of calls of smolagents are no conversations: one that asks for a plan, which another conversation then shows,
and one that forces the answer of an agent that is out of steps, which holds the end of another conversation.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from coa.distill.sources.calls import Conversation, ModelCall, plan_of, since
from coa.distill.sources.frames import before_forced, forces
from coa.distill.sources.messages import ASSISTANT, SYSTEM, USER, Message, system_of
from coa.distill.sources.tree import Tree
from coa.usage import Usage


def conversations(calls: Sequence[ModelCall]) -> list[Conversation]:
    """The conversations of the calls, in the order in which they began."""
    tree = Tree()
    forced: dict[int, list[ModelCall]] = defaultdict(list)
    """Requests that forced an answer, by the identity of the call that they continue."""
    for call in sorted(calls, key=lambda call: call.began):
        if _forces(call) and (stuck := tree.continued(call)) is not None:
            forced[id(stuck)].append(call)
        else:
            tree.add(call)
    found = tree.paths()
    for one in found:
        last = one.calls[-1]
        for call in forced[id(last)]:
            asked = Message(USER, before_forced(call.messages[-1].text))
            one.closing = since(last.messages, [*call.messages[:-1], asked], last.reply)
            one.forced += call.usage
    _mark_plans(found)
    return sorted(found, key=lambda one: one.began)


def conversation_of(messages: Sequence[Message]) -> Conversation:
    """A conversation that was written down as a whole: each of its replies is one call, of which nothing else is
    known. A message with calls that follows another one of the model belongs to the same reply."""
    said: list[Message] = []
    calls: list[ModelCall] = []
    system = system_of(messages)
    for message in messages:
        if message.role == SYSTEM:
            continue
        if message.role == ASSISTANT:
            if said and said[-1].role == ASSISTANT and message.uses:
                message = _joined(said.pop(), message)
                calls.pop()
            calls.append(ModelCall("", len(said), len(said), "", system, tuple(said), message, "", Usage()))
        said.append(message)
    return Conversation(calls=calls, closing=said[len(calls[-1].messages) + 1 :] if calls else said)


def _joined(one: Message, other: Message) -> Message:
    texts, thoughts = ("\n".join(filter(None, both)) for both in ((one.text, other.text), (one.thought, other.thought)))
    return replace(one, text=texts, thought=thoughts, uses=one.uses + other.uses)


def _forces(call: ModelCall) -> bool:
    return bool(call.messages) and forces(call.system, call.messages[-1].text)


def _mark_plans(found: Sequence[Conversation]) -> None:
    shown = {plan for one in found for message in one.calls[-1].messages if (plan := plan_of(message))}
    for one in found:
        one.plans = len(one.calls) == 1 and one.calls[0].reply.text.strip() in shown
