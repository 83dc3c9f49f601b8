"""Reads recorded sessions (`coa.distill.sources.recorder`) as runs: their conversations, in order of time.

    one task        the run is the whole session
    several tasks   each conversation that begins with a task's question begins a run; the other conversations belong
                    to the run that began before them
    branches        each branch of the conversation that gives the answer is a run; the other conversations belong to
                    the branch that went on last before them

An incomplete line (after a full disk or a kill) is left out and reported. A run that lacks this line's call is refused;
it is recognised by a reply in its messages that no line contains.

The conversation with the last reply gives the answer. If an agent delegates work by a tool call, another conversation
begins with the call's argument, and its steps replace the tool result. A tool that itself asks a model, such as one
that summarises pages, remains a tool.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from coa.agent.grammar import ANSWER
from coa.distill.sources.calls import Conversation, ModelCall
from coa.distill.sources.conversations import conversations
from coa.distill.sources.foreign import (
    Activation,
    Answer,
    Call,
    ForeignRun,
    Heard,
    Piece,
    Reason,
    Refusal,
    Refused,
    Remark,
    Thought,
)
from coa.distill.sources.frames import LOGS, NOT_PARSED
from coa.distill.sources.match import Tasks
from coa.distill.sources.messages import ASSISTANT, SYSTEM, TOOL, read_message, read_messages, system_of
from coa.distill.sources.programs import gives_answer, pieces_of_program
from coa.distill.sources.replies import (
    MARKS,
    agent_name,
    answer_pieces,
    calls_by_tag,
    pieces_of,
    split_program,
    split_thinking,
    written_calls,
)
from coa.distill.sources.results import handed_to, is_observed, results_of, said_by_user, seen_after, texts_of
from coa.distill.sources.source import JSONL, files, records
from coa.distill.sources.tools import ToolTable, as_arguments, slot_of
from coa.json_object import JsonView
from coa.usage import Usage

TEAM = "recorded"
SHORTEST_SHARE = 4
"""Minimum characters of an argument for a conversation that contains it to count as being about the call."""


def read_runs(path: Path, tasks: Tasks, table: ToolTable) -> Iterator[ForeignRun | Refusal]:
    """The runs of the session files of a folder, or of one file."""
    for file in files(path, JSONL):
        try:
            session, calls, failed_at, torn = _read(file)
        except Refused as refused:
            yield Refusal(str(file), refused.reason, refused.detail)
            continue
        yield from (Refusal(where, Reason.TORN) for where in torn)
        groups = _by_task(conversations(calls), tasks)
        last = max(groups, key=lambda name: groups[name][-1].began)
        for name, group in groups.items():
            branches = _branches(group)
            for number, branch in enumerate(branches, start=1):
                parts = [name] * (len(groups) > 1) + [f"branch {number}"] * (len(branches) > 1)
                where = f"{file} ({', '.join(filter(None, parts))})" if any(parts) else str(file)
                try:
                    if name == last and failed_at > max(one.calls[-1].began for one in branch):
                        raise Refused(Reason.FAILED, "its last call of the model failed")
                    if torn and any(map(_lacks_a_call, branch)):
                        raise Refused(Reason.MISSING_CALL)
                    activations = activations_of(branch, table)
                except Refused as refused:
                    yield Refusal(where, refused.reason, refused.detail)
                else:
                    opening = "\n\n".join(one.opening for one in branch)
                    yield ForeignRun(
                        where=where, team=TEAM, ids=(name, session), question=opening, activations=activations
                    )


def _read(file: Path) -> tuple[str, list[ModelCall], float, list[str]]:
    """(session id, calls that succeeded, start time of the last failed call, places of incomplete lines); raises
    Refused."""
    session, calls, failed_at, torn = "", [], 0.0, []
    replies: dict[str, ModelCall] = {}
    for where, record in records(file):
        if record is None:
            torn.append(where)
            continue
        try:
            session = record["session"]
            if record["failure"]:
                failed_at = max(failed_at, record["began"])
                continue
            call = _call(record)
            if continued := record.get("continues"):
                call = _after(replies.get(continued), call, continued)
            replies[record.get("id") or ""] = call
            calls.append(call)
        except (TypeError, LookupError, AttributeError, ValueError) as error:
            raise Refused(Reason.UNREADABLE, where) from error
        except Refused as refused:
            raise Refused(refused.reason, f"{where}: {refused.detail}") from refused
    if not calls:
        raise Refused(Reason.FAILED if failed_at else Reason.UNREADABLE if torn else Reason.EMPTY)
    return session, calls, failed_at, torn


def _after(earlier: ModelCall | None, call: ModelCall, name: str) -> ModelCall:
    """A call with the messages that the endpoint kept, since the request names the reply that it continues."""
    if earlier is None:
        raise Refused(Reason.NOT_HEARD, name)
    return replace(call, messages=(*earlier.messages, earlier.reply, *call.messages))


def _lacks_a_call(one: Conversation) -> bool:
    """Whether the conversation's messages contain more replies than its calls gave."""
    replies = sum(message.role == ASSISTANT for message in one.calls[-1].messages)
    return replies >= len(one.calls)


def _call(record: JsonView) -> ModelCall:
    usage = record["usage"] or {}
    messages = read_messages(record["messages"])
    [reply] = read_message(record["reply"])
    return ModelCall(
        task=record["task"],
        began=record["began"],
        ended=record["began"] + record["seconds"],
        model=record["model"],
        system=system_of(messages),
        messages=tuple(message for message in messages if message.role != SYSTEM),
        reply=reply,
        finish=record["finish"],
        usage=Usage(
            1, count(usage, "prompt_tokens", "input_tokens"), count(usage, "completion_tokens", "output_tokens")
        ),
    )


def count(usage: JsonView, *names: str) -> int:
    """The first of these counts that is a number; 0 if none is."""
    return next((int(usage[name]) for name in names if isinstance(usage.get(name), int | float)), 0)


def _by_task(found: Sequence[Conversation], tasks: Tasks) -> dict[str, list[Conversation]]:
    """The conversations by task id, which is recorded or found by the question; "" for none."""
    names: list[str] = []
    for one in found:
        recorded = one.calls[0].task
        task = tasks.find((recorded,), "" if recorded else one.opening)
        names.append(task.id if task else recorded)
    groups: dict[str, list[Conversation]] = {}
    name = next((name for name in names if name), "")
    for own, one in zip(names, found, strict=True):
        name = own or name
        groups.setdefault(name, []).append(one)
    return groups


def _branches(group: Sequence[Conversation]) -> list[list[Conversation]]:
    """The conversations of each branch of the one that gives the answer."""
    main = _main(group)
    branches = [one for one in group if one.tree == main.tree and not one.plans]
    if len(branches) < 2:
        return [list(group)]
    common = max(one.shared for one in branches)
    parted = min((call.began for one in branches for call in one.calls[common:]), default=main.ended)
    runs: list[list[Conversation]] = [[] for _ in branches]
    for one in group:
        if one in branches:
            runs[branches.index(one)].append(one)
        elif one.ended <= parted:
            for run in runs:
                run.append(one)
        else:
            before = [max((c.ended for c in b.calls if c.ended <= one.began), default=0.0) for b in branches]
            runs[before.index(max(before))].append(one)
    return runs


def _main(group: Sequence[Conversation]) -> Conversation:
    """The conversation with the last reply."""
    return max(group, key=lambda one: (not one.plans, one.calls[-1].began))


def activations_of(group: Sequence[Conversation], table: ToolTable) -> tuple[Activation, ...]:
    """Returns the activations of the agents of one run, in order of time. Raises Refused."""
    return tuple(_Run(group, table).activations())


class _Run:
    """Conversations of one task, as activations."""

    def __init__(self, group: Sequence[Conversation], table: ToolTable) -> None:
        self._group, self._table = group, table
        self._main = _main(group)
        self._inside_of_tools: list[Conversation] = []
        self._agent = ""
        """The agent that has the conversation."""

    def activations(self) -> list[Activation]:
        timed: list[tuple[float, Conversation, Activation]] = []
        for number, one in enumerate(self._group, start=1):
            self._agent = agent_name(one.calls[0].system, number)
            for n, call in enumerate(one.calls):
                usage = call.usage + (one.unheard if n == 0 else Usage())
                usage += one.forced if n + 1 == len(one.calls) else Usage()
                agent, pieces = self._agent, (*self._pieces(one, n), *self._user_turns(one, n))
                # Of two branches in one run, the second begins where it parts from the first.
                if one is self._main or n >= one.shared:
                    timed.append((call.ended, one, Activation(agent, pieces, usage, call.model)))
        timed.sort(key=lambda entry: entry[0])
        # Only the usage is kept of conversations in which a tool itself asked a model.
        inside = {id(one) for one in self._inside_of_tools}
        for one in self._group:
            if id(one) not in inside and (one.attached or one.cut):
                raise Refused(Reason.NOT_TEXT if one.attached else Reason.CUT, one.attached)
        return [Activation(act.agent, (), act.usage) if id(one) in inside else act for _, one, act in timed]

    def _pieces(self, one: Conversation, n: int) -> Iterator[Piece]:
        call, main = one.calls[n], one is self._main
        yield Thought(call.reply.thought)
        said, seen = call.reply.text, seen_after(one, n)
        if one.plans:
            yield Remark(MARKS.sub("", said), "plan")
        elif seen is not None and seen.error.startswith(NOT_PARSED):
            return  # the reply could not be parsed, so nothing was called
        elif call.uses:
            written = None if call.reply.uses else written_calls(said)
            yield from pieces_of(said if written is None else written.before)
            for use, result in results_of(one, n):
                yield from self._called(one, n, Call(use.name, use.arguments, result), main)
        elif program := self._program(one, n, said):
            before, _ = split_program(said)
            yield from pieces_of(before if program != said else "")
            for piece in pieces_of_program(program, seen, self._table):
                yield Remark(piece.text) if isinstance(piece, Answer) and not main else piece
        elif main and n + 1 == len(one.calls) and seen is None and call.finish != "length":
            yield from answer_pieces(said)
        else:
            for piece in pieces_of(said, None if seen is None else seen.result):
                yield Remark(piece.text) if isinstance(piece, Answer) and not main else piece

    def _user_turns(self, one: Conversation, n: int) -> Iterator[Heard]:
        """Yields the user's messages before the next reply that are neither its results nor another agent's reply."""
        text, seen = said_by_user(one, n), seen_after(one, n)
        if text is None or seen is None or one.plans or n + 1 == len(one.calls):
            return
        call = one.calls[n]
        if seen.error or calls_by_tag(call.reply.text) or self._program(one, n, call.reply.text):
            return
        by_tools = any(message.role == TOOL for message in one.after(n))
        if by_tools and not call.uses:
            raise Refused(Reason.NO_CALL, call.reply.text[:80])
        if call.uses and not by_tools:
            return
        others = (other for held in self._group if held is not one for other in held.calls)
        replies = (split_thinking(other.reply.text)[1].strip() for other in others)
        if not any(reply and reply in text for reply in replies):
            yield Heard(text)

    def _program(self, one: Conversation, n: int, said: str) -> str:
        """The program in a reply if it was run: it was answered with an observation, or it gives the answer."""
        _, program = split_program(said)
        if (seen := seen_after(one, n)) is None:
            return program if gives_answer(program, self._table) else ""
        if not program and seen.text.startswith(LOGS):
            return said  # without a fence around it
        return program if is_observed(one, n) else ""

    def _called(self, one: Conversation, n: int, call: Call, main: bool) -> Iterator[Piece]:
        slot = slot_of(call.name, self._table)
        elsewhere = n + 1 == len(one.calls) and any(other.began > one.ended for other in self._group)
        if slot is None and (agent := handed_to(call.name, call.result, elsewhere=elsewhere)) is not None:
            self._agent = agent or self._agent
            yield Thought("\n".join(texts_of(as_arguments(call.arguments))))
            return
        if slot is not None and slot.tags == (ANSWER,):
            # The answer of a subordinate agent is a report.
            yield call if main else Remark("\n".join(texts_of(as_arguments(call.arguments))))
            return
        ends = one.calls[n + 1].began if n + 1 < len(one.calls) else float("inf")
        shares = tuple(texts_of(as_arguments(call.arguments)))
        others = (other for other in self._group if other is not one and not other.plans)
        during = [other for other in others if one.calls[n].ended <= other.began and other.ended <= ends]
        about_it = [other for other in during if _is_about(shares, other)]
        if about_it and (slot is None or any(c.uses for other in about_it for c in other.calls)):
            yield Thought("\n".join(shares))
        else:
            self._inside_of_tools += about_it
            yield call


def _is_about(shares: Sequence[str], one: Conversation) -> bool:
    """Whether a conversation is about a call's arguments, given the texts among these."""
    opening = " ".join(one.opening.split())
    return any(share in opening for share in shares if len(share) >= SHORTEST_SHARE)
