"""Runs of smolagents, recorded and by their logs, against what their tools and callers saw."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from coa.distill import to_chain
from coa.distill.sources import Refusal, import_runs
from coa.teams.transcript import Ending, ToolStep, Transcript
from tests.support.imported_runs import holds, spans
from tests.support.smolagents_runs import DOWN, NOT_RECORDED, NOT_TOLD_APART, TASKS, UNANSWERED, Run, play_all

KEPT = [json.loads(line) for line in Path(__file__).with_name("smolagents_runs.jsonl").read_text().splitlines()]
"""Runs of `tests.support.smolagents_runs`, without long prompts."""


def in_both_forms(run: Run, recorded: Path, log: Path) -> tuple[Transcript | Refusal, Transcript | Refusal]:
    [one] = import_runs("recorded", recorded / f"{run.name}.jsonl", TASKS)
    [other] = import_runs("smolagents", log / f"{run.name}.json", TASKS)
    return one, other


def check(run: Run, transcript: Transcript) -> None:
    """Nothing is invented and nothing lost: calls that reached a tool, their results, and the answer."""
    steps = [step for step in transcript.steps if isinstance(step, ToolStep) and step.call.tool != "code"]
    assert [(step.call.tool, step.call.argument) for step in steps] == [(tool, asked) for tool, asked, _ in run.seen]
    for step, (_, argument, result) in zip(steps, run.seen, strict=True):
        failed = argument == DOWN
        assert step.observation.startswith("Error: ") == failed
        assert result in step.observation if failed else step.observation == result
    unanswered = run.task in (TASKS[n] for n, name in enumerate(NAMES) if name in UNANSWERED)
    assert transcript.ending is (Ending.OUT_OF_STEPS if unanswered else Ending.ANSWERED)
    assert transcript.answer == ("" if unanswered else run.answer)
    assert holds(transcript)


NAMES = [task.question.partition(": ")[2].removesuffix(" ?") for task in TASKS]


def kept(name: str) -> dict[str, Any]:
    return next(one for one in KEPT if one["name"] == name)


def read_back(one: dict[str, Any], folder: Path) -> tuple[Transcript, Transcript]:
    """A kept run, imported in both forms."""
    lines = "".join(json.dumps(record) + "\n" for record in one["recorded"])
    (folder / f"{one['name']}.jsonl").write_text(lines)
    (folder / f"{one['name']}.json").write_text(json.dumps(one["log"]))
    run = Run(one["name"], TASKS[one["task"]], one["kind"], "planned" in one["name"])
    first, second = in_both_forms(run, folder, folder)
    assert isinstance(first, Transcript)
    assert isinstance(second, Transcript)
    return first, second


@pytest.mark.parametrize("one", KEPT, ids=lambda one: one["name"])
def test_a_run_is_the_same_chain_by_its_recording_and_by_its_log(one: dict[str, Any], tmp_path: Path) -> None:
    recorded, logged = read_back(one, tmp_path)
    assert to_chain(recorded) == to_chain(logged)
    assert recorded.usage == logged.usage
    run = Run(one["name"], TASKS[one["task"]], one["kind"], "planned" in one["name"])
    run.seen, run.answer = [tuple(call) for call in one["seen"]], one["answer"]
    check(run, recorded)


def test_a_new_plan_is_a_plan_and_what_the_framework_says_is_no_observation(tmp_path: Path) -> None:
    recorded, _ = read_back(kept("t11-tools-planned"), tmp_path)
    chain = spans(recorded)
    assert [text for tag, text in chain if tag == "plan"] == ["1. find the owner\n2. find her town"] * 3
    assert not [text for _, text in chain if "Now proceed" in text or "Here are the facts" in text]


def test_an_answer_that_was_forced_is_none_and_the_last_call_keeps_its_result(tmp_path: Path) -> None:
    recorded, _ = read_back(kept("t11-code-plain"), tmp_path)
    assert recorded.ending is Ending.OUT_OF_STEPS
    last = spans(recorded)[-2:]
    assert [tag for tag, _ in last] == ["wiki_search", "observation"]
    assert last[1][1].endswith("then Error: stop.")


def test_a_last_program_that_computes_and_answers_has_its_output(tmp_path: Path) -> None:
    recorded, _ = read_back(kept("t12-code-plain"), tmp_path)
    assert spans(recorded)[-3:] == [
        ("code", "```py\nlength = 210\nfor _ in range(1):\n    length *= 2\nprint(length)\n```"),
        ("observation", "420"),
        ("answer", "420"),
    ]


@pytest.mark.slow
def test_what_agents_of_smolagents_did_is_what_is_imported(tmp_path: Path) -> None:
    smolagents = pytest.importorskip("smolagents")
    runs = asyncio.run(play_all(smolagents, tmp_path / "recorded", tmp_path / "logs"))
    assert len(runs) == 14 * 2 * 2
    equal = answered = 0
    for run in runs:
        name = NAMES[TASKS.index(run.task)]
        forms = in_both_forms(run, tmp_path / "recorded", tmp_path / "logs")
        for one in forms:
            if isinstance(one, Transcript):
                check(run, one)
        refused = [isinstance(one, Refusal) for one in forms]
        assert refused[1] == ((name, run.kind) in NOT_TOLD_APART), name
        assert refused[0] == ((name, run.kind) in NOT_TOLD_APART + NOT_RECORDED), name
        chains = [to_chain(one) for one in forms if isinstance(one, Transcript)]
        assert len(chains) < 2 or chains[0] == chains[1]
        answered += name not in UNANSWERED
        equal += len(chains) == 2 and name not in UNANSWERED
    assert (answered, equal) == (52, 48)
