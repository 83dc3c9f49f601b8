"""Groups calls of a model into conversations: a call continues a conversation if its messages begin with those of it.

call 1   system, question                                 -> search(...)      conversation 1
call 2   system, question, search(...), result            -> ask_expert(...)  conversation 1
call 3   other system, what the expert was asked          -> text             conversation 2
call 4   system, question, ..., ask_expert(...), result   -> text             conversation 1
call 5   system, question, search(...), another result    -> text             conversation 3, a branch of 1

What is compared leaves out what agents write anew into each request, such as the time (`Tree`).

Two kinds of calls of smolagents are no conversations: one that asks for a plan, which another conversation then shows,
and one that forces the answer of an agent that is out of steps, which holds the end of another conversation.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from coa.distill.sources.calls import Conversation, ModelCall, echoes, grown_by, plan_of, since, uses_of, visible
from coa.distill.sources.frames import OBSERVATION, before_forced, forces, is_marked
from coa.distill.sources.messages import ASSISTANT, SYSTEM, TOOL, USER, Message, system_of, without_changing
from coa.usage import Usage

_Key = tuple[str, str, tuple[tuple[str, str], ...]]


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


@dataclass(slots=True)
class _Node:
    """A place in the messages that requests begin with."""

    children: dict[_Key, "_Node"] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)
    """The calls whose messages end here."""


@dataclass(slots=True)
class _Entry:
    call: ModelCall
    parent: int | None
    heard: bool
    """Whether the messages go on with the parent's reply."""
    cut: bool
    """Whether its messages lack the beginning of a conversation."""
    children: list[int] = field(default_factory=list)


class Tree:
    """The tree of a session's calls: the parent of a call is the earlier call that it continues.

    question -> a                        a root
    question, a, result -> b             continues the first: its messages begin with those of the first, then its reply
    question, a, other result -> c       continues the first, too: a branch
    question, a, result -> d             the same request as b's: if only one of them is continued, the other was lost

    question, b, result -> e             continues b's, too, though the agent has left out what stood before

    Some agents write the time, a counter or an id anew into each request. So numbers, dates and ids in messages of the
    system and the user count as equal if the messages go on with the earlier call's reply, and so does any other change
    of the system's message.
    """

    def __init__(self) -> None:
        self._root = _Node()
        self._entries: list[_Entry] = []
        self._replies: dict[object, list[int]] = defaultdict(list)
        """The calls by what their replies say."""

    def add(self, call: ModelCall) -> None:
        """Adds a call, which began after all others."""
        parent, heard = self._parent(call)
        begins = 0 if parent is None else len(self._entries[parent].call.messages)
        at = max((n for n, message in enumerate(call.messages) if message.role == ASSISTANT), default=-1)
        if (at > begins or not heard) and (trimmed := self._trimmed(call, at)) is not None:
            parent, heard = trimmed, True
            call = replace(call, messages=(*self._entries[trimmed].call.messages, *call.messages[at:]))
        cut = not heard and self._is_cut(call, begins)
        self._replies[_say(call.reply)].append(len(self._entries))
        self._entries.append(_Entry(call, parent, heard, cut))
        node = self._root
        for message in call.messages:
            node = node.children.setdefault(_key(message), _Node())
        node.ends.append(len(self._entries) - 1)

    def continued(self, call: ModelCall) -> ModelCall | None:
        """The call that another one continues, whatever its system's message; None if there is none."""
        parent, _ = self._parent(call, same_system=False)
        return None if parent is None else self._entries[parent].call

    def paths(self) -> list[Conversation]:
        """The calls from a first request to a last reply, for all replies that no call continues, in order of time. The
        calls that are in an earlier path, too, have no usage."""
        entries = self._entries
        self._link()
        unheard = self._unheard()
        trees: dict[object, int] = {}
        paths: list[Conversation] = []
        passed: set[int] = set()
        for last, entry in enumerate(entries):
            if last in unheard or entry.children:
                continue
            way = [last]
            while (before := entries[way[-1]].parent) is not None:
                way.append(before)
            way.reverse()
            lost = [n for n, survivor in unheard.items() if survivor in way and survivor not in passed]
            paths.append(
                Conversation(
                    calls=[self._call(way, k, shared=n in passed) for k, n in enumerate(way)],
                    shared=sum(n in passed for n in way),
                    tree=trees.setdefault(_identity(entries[way[0]].call), len(trees)),
                    cut=any(entries[n].cut for n in way),
                    unheard=sum((entries[n].call.usage for n in lost), Usage()),
                )
            )
            passed.update(way)
        return paths

    def _parent(self, call: ModelCall, *, same_system: bool = True) -> tuple[int | None, bool]:
        """The call that another one continues, and whether it goes on with its reply."""
        best: tuple[tuple[int, bool, bool, bool, bool, int], bool] | None = None
        for n in self._candidates(call.messages):
            earlier = self._entries[n].call
            length = len(earlier.messages)
            grew = bool(grown_by(earlier.messages[-1], call.messages[length - 1], earlier.reply))
            heard = grew or echoes(earlier.reply, call.messages[length])
            exact = all(map(_equal, earlier.messages[: length - grew], call.messages))
            system = not same_system or without_changing(earlier.system) == without_changing(call.system)
            if heard or (exact and system):
                rank = (length, not grew, exact, heard, system, n)
                best = max(best, (rank, heard)) if best else (rank, heard)
        return (None, False) if best is None else (best[0][-1], best[1])

    def _trimmed(self, call: ModelCall, at: int) -> int | None:
        """The call that another one continues, of whose messages it has left out or shortened some; None if there is
        none. at: the place of the last reply in the other's messages; -1 for none."""
        for n in reversed(self._gave(call, call.messages[at]) if at >= 0 else ()):
            earlier = self._entries[n].call.messages
            rest = iter(map(_place, earlier))
            if all(_place(message) in rest for message in call.messages[:at]):
                same = list(map(_key, earlier)) == list(map(_key, call.messages[:at]))
                return None if same else n
        return None

    def _is_cut(self, call: ModelCall, begins: int) -> bool:
        """Whether a call's messages, from one of them on, begin in the middle of a conversation: with a result, or with
        an earlier reply and its result, though they do not continue an earlier call."""
        new = call.messages[begins:]
        if not begins and new and (new[0].role == TOOL or is_marked(new[0].text, OBSERVATION)):
            return True
        given = (n for n, message in enumerate(new) if message.role == ASSISTANT and self._gave(call, message))
        return any(n + 1 < len(new) and (n == begins or _is_result(new[n + 1])) for n in given)

    def _gave(self, call: ModelCall, message: Message) -> list[int]:
        """The earlier calls of which a message is the reply, and which have the system's message of another one."""
        system = without_changing(call.system)
        return [
            n for n in self._replies.get(_say(message), ()) if without_changing(self._entries[n].call.system) == system
        ]

    def _candidates(self, messages: Sequence[Message]) -> Iterator[int]:
        """The calls with whose messages these messages begin, the last of which may have grown."""
        node = self._root
        for at, message in enumerate(messages, start=1):
            for child in node.children.values():
                for n in child.ends:
                    earlier = self._entries[n].call
                    if grown_by(earlier.messages[-1], message, earlier.reply):
                        yield n
            if (found := node.children.get(_key(message))) is None:
                return
            node = found
            if at < len(messages):
                yield from node.ends

    def _link(self) -> None:
        """Gives each call its children. A call that goes on without the reply of its parent, while another one goes on
        with it, is a question on the side, and no continuation."""
        heard = {entry.parent for entry in self._entries if entry.heard}
        for n, entry in enumerate(self._entries):
            if entry.parent is None:
                continue
            if not entry.heard and entry.parent in heard and self._next(entry).role != ASSISTANT:
                entry.parent = None
            else:
                self._entries[entry.parent].children.append(n)

    def _next(self, entry: _Entry) -> Message:
        """The message after those of the parent."""
        assert entry.parent is not None
        return entry.call.messages[len(self._entries[entry.parent].call.messages)]

    def _unheard(self) -> dict[int, int]:
        """For each call whose reply was not used, since the same request was sent again: the call that was heard."""
        same: dict[object, list[int]] = defaultdict(list)
        for n, entry in enumerate(self._entries):
            same[entry.parent, _identity(entry.call)].append(n)
        lost: dict[int, int] = {}
        for numbers in same.values():
            heard = [n for n in numbers if self._entries[n].children] or numbers[-1:]
            lost |= {n: heard[0] for n in numbers if n not in heard}
        for n in lost:
            if (parent := self._entries[n].parent) is not None:
                self._entries[parent].children.remove(n)
        return lost

    def _call(self, way: Sequence[int], k: int, *, shared: bool) -> ModelCall:
        """A call of a path, with the reply with which the next call goes on."""
        entry = self._entries[way[k]]
        call = replace(entry.call, usage=Usage()) if shared else entry.call
        if k + 1 < len(way) and len(entry.children) > 1:
            following = self._entries[way[k + 1]]
            if not following.heard and self._next(following).role == ASSISTANT:
                return replace(call, reply=self._next(following))
        return call


def _key(message: Message) -> _Key:
    text = without_changing(message.text) if message.role == USER else message.text.strip()
    return message.role, text, uses_of(message)  # some agents give calls new ids in each request


def _place(message: Message) -> object:
    """Returns a key that a message shares with its copy in a request in which old results are shortened."""
    return TOOL if message.role == TOOL else _key(message)


def _is_result(message: Message) -> bool:
    return message.role == TOOL or is_marked(message.text)


def _say(message: Message) -> object:
    return uses_of(message) or visible(message)


def _equal(one: Message, other: Message) -> bool:
    return one.role != USER or one.text.strip() == other.text.strip()


def _identity(call: ModelCall) -> object:
    return without_changing(call.system), tuple((*_key(message), message.text.strip()) for message in call.messages)
