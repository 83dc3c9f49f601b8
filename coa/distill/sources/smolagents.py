"""Reads memories of agents of smolagents, and of its fork OAgents, as runs.

    smolagents   agent.memory.get_full_steps(), or agent.run(..., return_full_result=True).dict(), as JSON; or JSONL of
                 these. Fields beside the steps are read, too: {"task_id": "t7", "steps": [...]}
    oagents      the answers file of its benchmark scripts, JSONL: {"task_id", "question", "prediction",
                 "intermediate_steps": [...], "agent_error", ...}

    step of the memory    read as
    task                  the question, if nothing beside the steps has it
    planning              facts and plan: a remark meant as a plan
    action                the text before the program or the calls; then these, with their observations and error
    its evaluation        a remark meant as a reflection (OAgents)
    final answer          the answer (smolagents; the answer of OAgents is its prediction)

A step that the framework could not parse (AgentParsingError) called nothing: its text and error are left out.
"""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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
from coa.distill.sources.frames import Seen, plan_in
from coa.distill.sources.messages import reasoning_of, text_of
from coa.distill.sources.programs import INTERPRETER, answering_tools, pieces_of_program
from coa.distill.sources.replies import MARKS, pieces_of, split_program
from coa.distill.sources.results import told_apart
from coa.distill.sources.source import JSON, JSONL, files, records
from coa.distill.sources.tools import ToolTable
from coa.json_object import JsonView
from coa.usage import Usage

SMOLAGENTS, OAGENTS = "smolagents", "oagents"
AGENT = "agent"
"""Name of the agent whose memory is read; agents that it manages count as its tools."""
OUT_OF_STEPS, NOT_READ, NOT_MADE = "AgentMaxStepsError", "AgentParsingError", "AgentGenerationError"
PICTURES = ("task_images", "observations_images")

_CALLING = re.compile(r"\n?(?:Calling tools:|Action:)\s*[\[{].*", re.DOTALL)


def read_memories(path: Path, table: ToolTable, team: str) -> Iterator[ForeignRun | Refusal]:
    """The runs of a file, or of a folder's files."""
    for file in files(path, JSON, JSONL):
        for where, record in records(file):
            for at, memory in _memories(where, record):
                try:
                    yield _run(at, memory, table, team)
                except Refused as refused:
                    yield Refusal(at, refused.reason, refused.detail)
                except (TypeError, LookupError, AttributeError, ValueError):
                    yield Refusal(at, Reason.UNREADABLE)


def _memories(where: str, record: object) -> Iterator[tuple[str, Any]]:
    """The runs of a record, which is a run, the steps of one, or a list of runs; each with its place."""
    if isinstance(record, list) and record and all(isinstance(one, dict) and _steps(one) is not None for one in record):
        for number, one in enumerate(record, start=1):
            yield f"{where}, run {number}", one
    else:
        yield where, {"steps": record} if isinstance(record, list) else record


def _steps(memory: JsonView) -> Any:
    return memory.get("steps", memory.get("intermediate_steps"))


def _run(where: str, memory: JsonView, table: ToolTable, team: str) -> ForeignRun:
    if error := memory.get("agent_error"):
        raise Refused(Reason.FAILED, str(error).splitlines()[0][:200])
    steps = _steps(memory)
    if not all(isinstance(step, dict) for step in steps):
        raise Refused(Reason.UNREADABLE, "its steps are texts, not objects")
    if pictures := next((name for step in steps for name in PICTURES if step.get(name)), ""):
        raise Refused(Reason.NOT_TEXT, pictures)
    model = str(memory.get("agent_name") or "") if team == OAGENTS else ""
    activations = [
        Activation(AGENT, tuple(_pieces(step, table)), _usage(step), model)
        for step in steps
        if _kind(step) in ("planning", "action")
    ]
    if (answer := _answer(memory, steps, team, table)) is not None:
        last = activations.pop() if activations else Activation(AGENT, ())
        activations.append(Activation(AGENT, (*last.pieces, Answer(answer)), last.usage, model))
    if not any(one.usage.tokens for one in activations):
        activations.append(Activation(AGENT, (), _total(memory)))
    return ForeignRun(
        where=where,
        team=team,
        ids=tuple(str(memory[key]) for key in ("task_id", "id") if memory.get(key) is not None),
        question=str(memory.get("question") or next((step["task"] for step in steps if _kind(step) == "task"), "")),
        activations=tuple(activations),
    )


def _kind(step: JsonView) -> str:
    """The kind of a step. OAgents names it; in smolagents it follows from the step's fields."""
    if "step_type" in step:
        return str(step["step_type"])
    kinds = {"plan": "planning", "tool_calls": "action", "model_output": "action", "task": "task"}
    return next((kind for field, kind in kinds.items() if field in step), "")


def _pieces(step: JsonView, table: ToolTable) -> Iterator[Piece]:
    if _kind(step) == "planning":
        text = "\n\n".join(str(step[field]).strip() for field in ("facts", "plan") if step.get(field))
        framed = plan_in(text)
        yield Remark(MARKS.sub("", text if framed is None else framed), "plan")
        return
    if _error(step) in (NOT_READ, NOT_MADE):
        return
    yield Thought(_reasoning(step))
    said, _ = split_program(text_of(step.get("model_output")))
    yield from pieces_of(MARKS.sub("", _CALLING.sub("", said)))
    yield from _calls(step, table)
    if thought := step.get("evaluate_thought"):
        yield Remark(str(thought), "reflection")


def _reasoning(step: JsonView) -> str:
    """The model's reasoning, taken from the endpoint's reply; "" for none."""
    try:
        return reasoning_of(step["model_output_message"]["raw"]["choices"][0]["message"])
    except (TypeError, LookupError, AttributeError):
        return ""


def _calls(step: JsonView, table: ToolTable) -> Iterator[Piece]:
    """The calls of a step, in the order of the model's request, without the call that gives the answer, which `_answer`
    finds."""
    calls = [call for call in _tool_calls(step) if call["function"]["name"] not in answering_tools(table)]
    seen = Seen(step.get("observations") or "", str((step.get("error") or {}).get("message") or ""))
    if len(calls) > 1:
        results = told_apart([str(call["id"]) for call in calls], seen)
        order = [call["id"] for call in (step.get("model_output_message") or {}).get("tool_calls") or calls]
        for call in sorted(calls, key=lambda call: order.index(call["id"]) if call["id"] in order else 0):
            yield Call(call["function"]["name"], call["function"]["arguments"], results[str(call["id"])])
        return
    for call in calls:
        name, arguments = call["function"]["name"], call["function"]["arguments"]
        if name != INTERPRETER:
            yield Call(name, arguments, seen.result)
            continue
        program = str(step.get("code_action") or (arguments["code"] if isinstance(arguments, dict) else arguments))
        yield from (piece for piece in pieces_of_program(program, seen, table) if isinstance(piece, Call))


def _tool_calls(step: JsonView) -> Sequence[JsonView]:
    """The tool calls of a step; if a call raised, they are in the model's message only."""
    return step.get("tool_calls") or (step.get("model_output_message") or {}).get("tool_calls") or ()


def _error(step: JsonView) -> str:
    return (step.get("error") or {}).get("type", "")


def _answer(memory: JsonView, steps: Sequence[JsonView], team: str, table: ToolTable) -> str | None:
    """The answer of a run; None if the run was out of steps and its answer was forced."""
    if memory.get("iteration_limit_exceeded") or any(_error(step) == OUT_OF_STEPS for step in steps):
        return None
    if team == OAGENTS:
        return _text(memory.get("prediction"))
    last = next((step for step in reversed(steps) if _kind(step) == "action"), {})
    calls = [call["function"] for call in _tool_calls(last)]
    answers = [call["arguments"] for call in calls if call["name"] in answering_tools(table)]
    if not (answers or last.get("is_final_answer")):
        return _text(memory.get("output"))
    # An agent that calls tools has its answer in the call only; an agent that acts by code, in the call's result.
    called = next(iter(answers[0].values()), None) if answers and isinstance(answers[0], dict) else None
    found = (one for one in (memory.get("output"), last.get("action_output"), called) if one is not None)
    return _text(next(found, None))


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _usage(step: JsonView) -> Usage:
    counts = step.get("token_usage") or {}
    return Usage(1, int(counts.get("input_tokens") or 0), int(counts.get("output_tokens") or 0))


def _total(memory: JsonView) -> Usage:
    """The usage of a whole run, for a memory without usage by step."""
    counts = memory.get("token_usage") or memory.get("token_counts") or {}
    tokens = [int(counts.get(f"{side}_tokens") or counts.get(side) or 0) for side in ("input", "output")]
    return Usage(0, *tokens)
