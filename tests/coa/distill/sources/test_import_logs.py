"""Step logs of smolagents, and of OAgents, as transcripts."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from coa.distill.sources import Reason, Refusal, import_runs
from coa.teams.transcript import Ending, Transcript
from coa.usage import Usage
from tests.support.imported_runs import PAGES, QUESTION, holds, imported, refused, spans, task


def action(text: str, **fields: Any) -> dict[str, Any]:
    """As an agent's memory has it."""
    return {
        "step_number": 1,
        "timing": {"start_time": 0.0},
        "model_input_messages": None,
        "tool_calls": [],
        "error": None,
        "model_output_message": None,
        "model_output": text,
        "code_action": None,
        "observations": None,
        "observations_images": None,
        "action_output": None,
        "token_usage": {"input_tokens": 100, "output_tokens": 10},
        "is_final_answer": False,
    } | fields


def acts(text: str, code: str, shown: str = "", last: str = "None", **fields: Any) -> dict[str, Any]:
    call = {"id": "call_1", "type": "function", "function": {"name": "python_interpreter", "arguments": code}}
    logs = f"Execution logs:\n{shown}\nLast output from code snippet:\n{last}"
    output = f"Thought: {text}\n<code>\n{code}\n</code>"
    return action(output, tool_calls=[call], code_action=code, observations=logs) | fields


def uses(text: str, name: str, arguments: Any, seen: str | None, **fields: Any) -> dict[str, Any]:
    call = {"id": "c0", "type": "function", "function": {"name": name, "arguments": arguments}}
    return action(text, tool_calls=[call], observations=seen) | fields


ASKED = {"task": QUESTION, "task_images": None}
PLANNED = {
    "model_input_messages": [],
    "plan": "Here are the facts I know and the plan of action that I will follow to solve the task:\n"
    "```\n1. owner\n2. town\n<end_plan>\n```",
    "token_usage": {"input_tokens": 100, "output_tokens": 10},
}
CODE_AGENT = [
    ASKED,
    PLANNED,
    acts("the owner", "print(wiki_search('Vexon Labs'))", PAGES["Vexon Labs"]),
    action("no code", error={"type": "AgentParsingError", "message": "no code found"}),
    acts("her town", "page = wiki_search(query='Nora Lind')\nprint(page)", PAGES["Nora Lind"]),
    acts("done", "final_answer('Berg')", last="Berg", is_final_answer=True, action_output="Berg"),
]


def memory(folder: Path, fields: object, name: str = "run.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(fields))
    return path


@pytest.mark.parametrize(
    "fields",
    [CODE_AGENT, {"output": "Berg", "state": "success", "steps": CODE_AGENT, "token_usage": {"input_tokens": 1}}],
    ids=["steps", "result"],
)
def test_a_code_agents_memory_becomes_tools_where_its_code_only_calls_them(fields: object, tmp_path: Path) -> None:
    [transcript] = imported("smolagents", memory(tmp_path, fields))
    assert spans(transcript) == [
        ("plan", "1. owner\n2. town"),
        ("think", "the owner"),
        ("wiki_search", "Vexon Labs"),
        ("observation", PAGES["Vexon Labs"]),
        ("think", "her town"),
        ("wiki_search", "Nora Lind"),
        ("observation", PAGES["Nora Lind"]),
        ("think", "done"),
        ("answer", "Berg"),
    ]
    assert holds(transcript)
    assert (transcript.ending, transcript.team, transcript.usage) == (Ending.ANSWERED, "smolagents", Usage(5, 500, 50))


def test_a_code_agents_programs_and_errors_become_code_and_observations(tmp_path: Path) -> None:
    error = {"type": "AgentExecutionError", "message": "division by zero"}
    failed = acts("compute", "print(1)\n1 / 0", error=error) | {"observations": "Execution logs:\n1\n"}
    last = acts("so", "x = 5 * 2\nfinal_answer(x)", last="10", is_final_answer=True, action_output=10)
    [transcript] = imported("smolagents", memory(tmp_path, [ASKED, failed, last]), task("code"))
    assert spans(transcript) == [
        ("plan", "compute"),
        ("code", "```py\nprint(1)\n1 / 0\n```"),
        ("observation", "1\nError: division by zero"),
        ("reflection", "so"),
        ("code", "```py\nx = 5 * 2\nprint(x)\n```"),
        ("observation", "10"),
        ("answer", "10"),
    ]


def test_a_tool_calling_agents_memory(tmp_path: Path) -> None:
    failed = uses("", "wiki_search", {"query": "Nora"}, None)
    failed |= {"model_output_message": {"tool_calls": failed["tool_calls"]}, "tool_calls": []}
    failed["error"] = {"type": "AgentToolExecutionError", "message": "down"}
    steps = [
        ASKED,
        uses("Look.", "wiki_search", {"query": "Vexon Labs"}, "seen"),
        failed,
        uses("", "final_answer", {"answer": "Berg"}, "Berg", is_final_answer=True),
    ]
    [transcript] = imported("smolagents", memory(tmp_path, steps))
    assert spans(transcript)[3:] == [("wiki_search", "Nora"), ("observation", "Error: down"), ("answer", "Berg")]


def test_a_managed_agents_report_is_an_observation(tmp_path: Path) -> None:
    asked = acts("ask", "search_agent(task='Who owns Vexon Labs?')", last="### 1. Task outcome\nNora Lind")
    [transcript] = imported("smolagents", memory(tmp_path, [ASKED, asked, CODE_AGENT[-1]]), task("multi"))
    assert spans(transcript)[1:3] == [
        ("web_search", "Who owns Vexon Labs?"),
        ("observation", "### 1. Task outcome\nNora Lind"),
    ]


def test_an_answer_that_was_forced_is_none(tmp_path: Path) -> None:
    forced = action("", error={"type": "AgentMaxStepsError", "message": "Reached max steps."}, action_output="Berg")
    fields = {"output": "Berg", "state": "max_steps_error", "steps": [*CODE_AGENT[:3], forced]}
    [transcript] = imported("smolagents", memory(tmp_path, fields))
    assert transcript.ending is Ending.OUT_OF_STEPS


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (acts("", "print(len(wiki_search('a')))"), Reason.TOOLS_IN_PROGRAM),
        (acts("", "print(total + 1)"), Reason.NOT_WHOLE),
        (acts("", "send_mail('a')"), Reason.NOT_WHOLE),
        (uses("", "send_mail", {"to": "a"}, "sent"), Reason.UNKNOWN_TOOL),
    ],
)
def test_a_step_that_cannot_be_told_refuses_the_run(step: dict[str, Any], reason: Reason, tmp_path: Path) -> None:
    assert refused("smolagents", memory(tmp_path, [ASKED, step, CODE_AGENT[-1]]), task("multi")).reason is reason


def together(seen: str, *queries: str) -> dict[str, Any]:
    """Calls of one reply, asked for in the order of their queries, and remembered in the order of their ids."""
    asked = [
        {"id": f"k{9 - n}", "type": "function", "function": {"name": "wiki_search", "arguments": {"query": query}}}
        for n, query in enumerate(queries)
    ]
    message = {"role": "assistant", "content": "Look.", "tool_calls": asked}
    return action("Look.", tool_calls=asked[::-1], model_output_message=message, observations=seen)


@pytest.mark.parametrize(
    "steps",
    [
        [{**ASKED, "task_images": ["b'..'"]}, *CODE_AGENT[1:]],
        [*CODE_AGENT[:2], acts("look", "f()", observations_images=["b'..'"]), *CODE_AGENT[2:]],
    ],
)
def test_a_run_with_pictures_is_refused(steps: list[dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"steps": steps, "output": "Berg"}))
    assert refused("smolagents", tmp_path).reason is Reason.NOT_TEXT


def test_tools_called_together_are_turns_in_the_order_in_which_they_were_asked_for(tmp_path: Path) -> None:
    steps = [ASKED, together("of b\nof a", "a", "b"), CODE_AGENT[-1]]
    [transcript] = imported("smolagents", memory(tmp_path, steps))
    assert spans(transcript)[1:5] == [
        ("wiki_search", "a"),
        ("observation", "of a"),
        ("wiki_search", "b"),
        ("observation", "of b"),
    ]


def test_tools_called_together_whose_results_nobody_can_tell_apart_refuse_the_run(tmp_path: Path) -> None:
    steps = [ASKED, together("of b\nof b or of a ?\nof a", "a", "b")]
    assert refused("smolagents", memory(tmp_path, steps)).reason is Reason.RESULTS_IN_ONE


def test_lines_are_read_one_by_one(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    fields = {"task_id": "t2", "steps": [{"task": "reworded"}, *CODE_AGENT[1:]]}
    path.write_text(f"{json.dumps({'steps': CODE_AGENT})}\n{{\n\n{json.dumps(fields)}\n")
    first, second, third = import_runs("smolagents", path, [task(), task(name="t2", question="?")])
    assert isinstance(first, Transcript)
    assert second == Refusal(f"{path}, line 2", Reason.UNREADABLE)
    assert isinstance(third, Transcript)
    assert third.task.id == "t2"


def oagents(steps: Sequence[Mapping[str, Any]], **fields: Any) -> dict[str, Any]:
    return {
        "agent_name": "gpt-4.1",
        "question": QUESTION,
        "prediction": "Berg",
        "intermediate_steps": steps,
        "parsing_error": False,
        "iteration_limit_exceeded": False,
        "agent_error": None,
        "task_id": "unknown",
        "token_counts": {"input": 900, "output": 90},
    } | fields


def plain(step: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """An action as OAgents writes it: without code and counts."""
    gone = ("code_action", "token_usage", "is_final_answer", "timing", "model_output_message")
    return {key: value for key, value in step.items() if key not in gone} | {"step_type": "action", **fields}


STEPS = [
    {"step_type": "task", "task": f"You have one question to answer.\n{QUESTION}"},
    {"step_type": "planning", "facts": "Nothing yet.", "plan": "1. owner\n2. town"},
    plain(acts("the owner", "print(wiki_search('Vexon Labs'))", PAGES["Vexon Labs"]), evaluate_thought="On track."),
    plain(acts("her town", "print(wiki_search('Nora Lind'))", PAGES["Nora Lind"])),
    plain(acts("done", "final_answer('The town is Berg')", last="The town is Berg")),
]


def test_oagents_facts_plans_evaluations_and_its_reformulated_answer(tmp_path: Path) -> None:
    path = memory(tmp_path, oagents(STEPS), "run.jsonl")
    [transcript] = imported("oagents", path)
    assert spans(transcript) == [
        ("plan", "Nothing yet.\n\n1. owner\n2. town"),
        ("think", "the owner"),
        ("wiki_search", "Vexon Labs"),
        ("observation", PAGES["Vexon Labs"]),
        ("reflection", "On track."),
        ("think", "her town"),
        ("wiki_search", "Nora Lind"),
        ("observation", PAGES["Nora Lind"]),
        ("think", "done"),
        ("answer", "Berg"),
    ]
    assert holds(transcript)
    assert (transcript.team, transcript.models) == ("oagents", (("agent", "gpt-4.1"),))
    assert (transcript.usage.prompt_tokens, transcript.usage.completion_tokens) == (900, 90)


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"agent_error": "timeout", "prediction": None, "intermediate_steps": []}, Reason.FAILED),
        ({"intermediate_steps": ["ActionStep(...)"]}, Reason.UNREADABLE),
        ({"intermediate_steps": [{"step_type": "action"}]}, None),
        ({"intermediate_steps": []}, None),
        ({"intermediate_steps": None}, Reason.UNREADABLE),
        ({"question": "another", "intermediate_steps": []}, Reason.NO_TASK),
    ],
)
def test_what_oagents_could_not_finish(fields: dict[str, Any], reason: Reason | None, tmp_path: Path) -> None:
    [result] = import_runs("oagents", memory(tmp_path, oagents(STEPS, **fields), "run.jsonl"), [task()])
    assert (result.reason if isinstance(result, Refusal) else None) is reason


def test_an_oagents_run_over_its_limit_is_out_of_steps(tmp_path: Path) -> None:
    [transcript] = imported("oagents", memory(tmp_path, oagents(STEPS, iteration_limit_exceeded=True), "run.jsonl"))
    assert transcript.ending is Ending.OUT_OF_STEPS
