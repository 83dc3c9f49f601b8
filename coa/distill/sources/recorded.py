"""Reads recorded sessions (`coa.distill.sources.recorder`) as runs: their conversations, in order of time.

    one task        the run is the whole session
    several tasks   each conversation that begins with a task's question begins a run; the other conversations belong
                    to the run that began before them

An incomplete line (after a full disk or a kill) is left out and reported. A run that lacks this line's call is refused;
it is recognised by a reply in its messages that no line contains.

The conversation with the last reply gives the answer. If an agent delegates work by a tool call, another conversation
begins with the call's argument, and its steps replace the tool result. A tool that itself asks a model, such as one
that summarises pages, remains a tool.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coa.agent.grammar import ANSWER
from coa.distill.sources.conversations import Conversation, ModelCall, conversations
from coa.distill.sources.foreign import (
    Activation,
    Answer,
    Call,
    ForeignRun,
    Piece,
    Reason,
    Refusal,
    Refused,
    Remark,
    Thought,
)
from coa.distill.sources.frames import LOGS, NOT_PARSED
from coa.distill.sources.match import Tasks
from coa.distill.sources.messages import (
    MARKS,
    agent_name,
    answer_pieces,
    pieces_of,
    reasoning_of,
    split_program,
    text_of,
)
from coa.distill.sources.programs.pieces import gives_answer, pieces_of_program
from coa.distill.sources.results import is_observed, results_of, seen_after, texts_of
from coa.distill.sources.source import JSONL, files, records
from coa.distill.sources.tools import ToolTable, as_arguments
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
            where = f"{file} ({name})" if name and len(groups) > 1 else str(file)
            try:
                if name == last and failed_at > max(one.calls[-1].began for one in group):
                    raise Refused(Reason.FAILED, "its last call of the model failed")
                if torn and any(map(_lacks_a_call, group)):
                    raise Refused(Reason.MISSING_CALL)
                activations = tuple(_Run(group, table).activations())
            except Refused as refused:
                yield Refusal(where, refused.reason, refused.detail)
            else:
                opening = "\n\n".join(one.opening for one in group)
                yield ForeignRun(where=where, team=TEAM, ids=(name, session), question=opening, activations=activations)


def _read(file: Path) -> tuple[str, list[ModelCall], float, list[str]]:
    """(session id, calls that succeeded, start time of the last failed call, places of incomplete lines); raises
    Refused."""
    session, calls, failed_at, torn = "", [], 0.0, []
    for where, record in records(file):
        if record is None:
            torn.append(where)
            continue
        try:
            session = record["session"]
            if record["failure"]:
                failed_at = max(failed_at, record["began"])
            else:
                calls.append(_call(record))
        except (TypeError, LookupError, AttributeError) as error:
            raise Refused(Reason.UNREADABLE, where) from error
    if not calls:
        raise Refused(Reason.FAILED if failed_at else Reason.UNREADABLE if torn else Reason.EMPTY)
    return session, calls, failed_at, torn


def _lacks_a_call(one: Conversation) -> bool:
    """Whether the conversation's messages contain more replies than its calls gave."""
    replies = sum(message.get("role") == "assistant" for message in one.calls[-1].messages)
    return replies >= len(one.calls)


def _call(record: Mapping[str, Any]) -> ModelCall:
    usage = record["usage"] or {}
    return ModelCall(
        task=record["task"],
        began=record["began"],
        ended=record["began"] + record["seconds"],
        model=record["model"],
        messages=tuple(dict(message) for message in record["messages"]),
        reply=dict(record["reply"]),
        finish=record["finish"],
        usage=Usage(1, int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0)),
    )


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


@dataclass(frozen=True, slots=True)
class _Window:
    """The time during which a tool call is under way."""

    begins: float
    ends: float
    shares: tuple[str, ...]
    """The texts among its arguments."""

    def holds(self, one: Conversation) -> bool:
        """Whether the conversation took place in that time and is about the call's arguments."""
        opening = " ".join(one.opening.split())
        return self.begins <= one.began and one.ended <= self.ends and any(share in opening for share in self.shares)


class _Run:
    """Conversations of one task, as activations."""

    def __init__(self, group: Sequence[Conversation], table: ToolTable) -> None:
        self._group, self._table = group, table
        self._main = max(group, key=lambda one: (not one.plans, one.calls[-1].began))
        self._inside_of_tools: list[Conversation] = []

    def activations(self) -> list[Activation]:
        timed: list[tuple[float, Conversation, Activation]] = []
        for number, one in enumerate(self._group, start=1):
            name = agent_name(one.system, number)
            for n, call in enumerate(one.calls):
                usage = call.usage + (one.unheard if n == 0 else Usage())
                usage += one.forced if n + 1 == len(one.calls) else Usage()
                timed.append((call.ended, one, Activation(name, tuple(self._pieces(one, n)), usage, call.model)))
        timed.sort(key=lambda entry: entry[0])
        # Only the usage is kept of conversations in which a tool itself asked a model.
        return [
            Activation(act.agent, (), act.usage) if any(one is inside for inside in self._inside_of_tools) else act
            for _, one, act in timed
        ]

    def _pieces(self, one: Conversation, n: int) -> Iterator[Piece]:
        call, main = one.calls[n], one is self._main
        yield Thought(reasoning_of(call.reply))
        said = text_of(call.reply.get("content"))
        seen = seen_after(one, n)
        if one.plans:
            yield Remark(MARKS.sub("", said), "plan")
        elif call.tool_calls:
            yield from pieces_of(said)
            for name, arguments, result in results_of(one, n):
                yield from self._called(one, n, Call(name, arguments, result), main)
        elif seen is not None and seen.error.startswith(NOT_PARSED):
            return  # the reply could not be parsed, so nothing was called
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

    def _program(self, one: Conversation, n: int, said: str) -> str:
        """The program in a reply if it was run: it was answered with an observation, or it gives the answer."""
        _, program = split_program(said)
        if (seen := seen_after(one, n)) is None:
            return program if gives_answer(program, self._table) else ""
        if not program and seen.text.startswith(LOGS):
            return said  # without a fence around it
        return program if is_observed(one, n) else ""

    def _called(self, one: Conversation, n: int, call: Call, main: bool) -> Iterator[Piece]:
        slot = self._table.get(call.name)
        if slot is not None and slot.tags == (ANSWER,):
            # The answer of a subordinate agent is a report.
            yield call if main else Remark("\n".join(texts_of(as_arguments(call.arguments))))
            return
        ends = one.calls[n + 1].began if n + 1 < len(one.calls) else float("inf")
        shares = tuple(texts_of(as_arguments(call.arguments)))
        window = _Window(one.calls[n].ended, ends, tuple(s for s in shares if len(s) >= SHORTEST_SHARE))
        others = (other for other in self._group if other is not one and not other.plans)
        about_it = [other for other in others if window.holds(other)]
        if about_it and (slot is None or any(c.tool_calls for other in about_it for c in other.calls)):
            yield Thought("\n".join(shares))
        else:
            self._inside_of_tools += about_it
            yield call
