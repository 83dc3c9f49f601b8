"""Memories of smolagents' agents, and of OAgents', which grew from it, as runs.

    smolagents   agent.memory.get_full_steps(), or agent.run(..., return_full_result=True).dict(), as JSON; or JSONL of
                 such. What stands beside the steps is read, too: {"task_id": "t7", "steps": [...]}
    oagents      the answers file of its benchmark scripts, JSONL: {"task_id", "question", "prediction",
                 "intermediate_steps": [...], "agent_error", ...}

    step of the memory    read as
    task                  the question, where nothing beside the steps has it
    planning              facts and plan: a remark meant as a plan
    action                what was said before the program or the calls; then these, with their observations and error
    its evaluation        a remark meant as a reflection (OAgents)
    final answer          the answer; of OAgents, its prediction is

A step that the framework could not read (AgentParsingError) called nothing: its text and error are left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coa.imports.foreign import Activation, Answer, Call, ForeignRun, Piece, Reason, Refusal, Refused, Remark
from coa.imports.messages import MARKS, pieces_of, split_program, text_of
from coa.imports.programs import INTERPRETER, answering_tools, pieces_of_program, shown_by
from coa.imports.source import JSON, JSONL, files, records
from coa.imports.tools import ToolTable
from coa.usage import Usage

SMOLAGENTS, OAGENTS = "smolagents", "oagents"
AGENT = "agent"
"""The name of the one agent whose memory it is; those that it manages are tools to it."""
OUT_OF_STEPS, NOT_READ, NOT_MADE = "AgentMaxStepsError", "AgentParsingError", "AgentGenerationError"

_CALLING = re.compile(r"\n?(?:Calling tools:|Action:)\s*[\[{].*", re.DOTALL)
_PLAN = re.compile(r"Here are the facts I know and [^\n]*:\n```\n(?P<plan>.*)\n```\s*\Z", re.DOTALL)


def read_smolagents(path: Path, table: ToolTable) -> Iterator[ForeignRun | Refusal]:
    return _read(path, table, SMOLAGENTS)


def read_oagents(path: Path, table: ToolTable) -> Iterator[ForeignRun | Refusal]:
    return _read(path, table, OAGENTS)


def _read(path: Path, table: ToolTable, team: str) -> Iterator[ForeignRun | Refusal]:
    """The runs of a file, or of a folder's files."""
    for file in files(path, JSON, JSONL):
        for where, record in records(file):
            for place, told in _told(where, record):
                try:
                    yield _run(place, told, table, team)
                except Refused as refused:
                    yield Refusal(place, refused.reason, refused.detail)
                except (TypeError, LookupError, AttributeError, ValueError):
                    yield Refusal(place, Reason.UNREADABLE)


def _told(where: str, record: Any) -> Iterator[tuple[str, Any]]:
    """A record is a run, the steps of one, or a list of runs."""
    if isinstance(record, list) and record and all(isinstance(one, dict) and _steps(one) is not None for one in record):
        for number, one in enumerate(record, start=1):
            yield f"{where}, run {number}", one
    else:
        yield where, {"steps": record} if isinstance(record, list) else record


def _steps(told: Mapping[str, Any]) -> Any:
    return told.get("steps", told.get("intermediate_steps"))


def _run(where: str, told: Mapping[str, Any], table: ToolTable, team: str) -> ForeignRun:
    if error := told.get("agent_error"):
        raise Refused(Reason.FAILED, str(error).splitlines()[0][:200])
    steps = _steps(told)
    if not all(isinstance(step, dict) for step in steps):
        raise Refused(Reason.UNREADABLE, "its steps are texts, not objects")
    model = str(told.get("agent_name") or "") if team == OAGENTS else ""
    activations = [
        Activation(AGENT, tuple(_pieces(step, table)), _usage(step), model)
        for step in steps
        if _kind(step) in ("planning", "action")
    ]
    if (answer := _answer(told, steps, team, table)) is not None:
        last = activations.pop() if activations else Activation(AGENT, ())
        activations.append(Activation(AGENT, (*last.pieces, Answer(answer)), last.usage, model))
    if not any(one.usage.tokens for one in activations):
        activations.append(Activation(AGENT, (), _total(told)))
    return ForeignRun(
        where=where,
        team=team,
        ids=tuple(str(told[key]) for key in ("task_id", "id") if told.get(key) is not None),
        question=str(told.get("question") or next((step["task"] for step in steps if _kind(step) == "task"), "")),
        activations=tuple(activations),
    )


def _kind(step: Mapping[str, Any]) -> str:
    """As OAgents names it; smolagents leaves it to the step's fields."""
    if "step_type" in step:
        return str(step["step_type"])
    kinds = {"plan": "planning", "tool_calls": "action", "model_output": "action", "task": "task"}
    return next((kind for field, kind in kinds.items() if field in step), "")


def _pieces(step: Mapping[str, Any], table: ToolTable) -> Iterator[Piece]:
    if _kind(step) == "planning":
        told = "\n\n".join(str(step[field]).strip() for field in ("facts", "plan") if step.get(field))
        framed = _PLAN.search(told)
        yield Remark(MARKS.sub("", framed["plan"] if framed else told), "plan")
        return
    if _error(step) in (NOT_READ, NOT_MADE):
        return
    said, _ = split_program(text_of(step.get("model_output")))
    yield from pieces_of(MARKS.sub("", _CALLING.sub("", said)))
    yield from _calls(step, table)
    if thought := step.get("evaluate_thought"):
        yield Remark(str(thought), "reflection")


def _calls(step: Mapping[str, Any], table: ToolTable) -> Iterator[Call]:
    """All but the answer, which `_answer` finds."""
    calls = [call["function"] for call in _tool_calls(step)]
    calls = [call for call in calls if call["name"] not in answering_tools(table)]
    if len(calls) > 1:
        raise Refused(Reason.RESULTS_IN_ONE, ", ".join(call["name"] for call in calls))
    for call in calls:
        name, arguments = call["name"], call["arguments"]
        if name != INTERPRETER:
            yield Call(name, arguments, _result(step))
            continue
        program = str(step.get("code_action") or (arguments["code"] if isinstance(arguments, dict) else arguments))
        for piece in pieces_of_program(program, _result(step), table, failed=bool(step.get("error"))):
            if isinstance(piece, Call):
                yield piece


def _tool_calls(step: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Those of a call that raised stand in the model's message alone."""
    return step.get("tool_calls") or (step.get("model_output_message") or {}).get("tool_calls") or ()


def _error(step: Mapping[str, Any]) -> str:
    return (step.get("error") or {}).get("type", "")


def _result(step: Mapping[str, Any]) -> str:
    """What came back: without the interpreter's headings, and with the error, if there was one."""
    told = shown_by(step.get("observations") or "")
    failed = (step.get("error") or {}).get("message")
    return "\n".join(part for part in (told, f"Error: {failed}" if failed else "") if part)


def _answer(told: Mapping[str, Any], steps: Sequence[Mapping[str, Any]], team: str, table: ToolTable) -> str | None:
    """None for a run that ran out of steps: what it said then was forced."""
    if told.get("iteration_limit_exceeded") or any(_error(step) == OUT_OF_STEPS for step in steps):
        return None
    if team == OAGENTS:
        return _text(told.get("prediction"))
    last = next((step for step in reversed(steps) if _kind(step) == "action"), {})
    calls = [call["function"] for call in _tool_calls(last)]
    given = [call["arguments"] for call in calls if call["name"] in answering_tools(table)]
    if not (given or last.get("is_final_answer")):
        return _text(told.get("output"))
    # An agent that calls tools leaves its answer in the call alone, one that acts by code in what that returned.
    called = next(iter(given[0].values()), None) if given and isinstance(given[0], dict) else None
    found = (one for one in (told.get("output"), last.get("action_output"), called) if one is not None)
    return _text(next(found, None))


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _usage(step: Mapping[str, Any]) -> Usage:
    counts = step.get("token_usage") or {}
    return Usage(1, int(counts.get("input_tokens") or 0), int(counts.get("output_tokens") or 0))


def _total(told: Mapping[str, Any]) -> Usage:
    """Of a run that tells no more."""
    counts = told.get("token_usage") or told.get("token_counts") or {}
    tokens = [int(counts.get(f"{side}_tokens") or counts.get(side) or 0) for side in ("input", "output")]
    return Usage(0, *tokens)
