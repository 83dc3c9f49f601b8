"""`import coa` as programs use it: the commands' own checks, a function as the grader, and an agent to ask."""

import asyncio
import json
import os
import subprocess
import sys
import threading
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest

import coa
from actors.serving.agent import ServedAgent
from coa.agent.grammar import Span
from coa.errors import InfrastructureError, ToolDown, UserError
from coa.tasks.loading import load_tasks
from coa.tools.base import ToolCall
from coa.tools.client import ToolCaller
from coa.types import Status, Task
from coa.user_reward import VARIABLE, grade_by_user, packed, user_reward
from jobs import api
from jobs.api import answered, overrides_of
from jobs.commands.ask.episode import request_of
from jobs.recipe.schema import Recipe
from tests.project.test_docs import ROOT
from tests.support.executors import Answering
from tests.support.fakes import tag_codec
from tests.support.policies import AGENT, AT_ONCE
from tests.support.runners import SEARCHES, Saying, echo

TASK = Task(id="t", question="What is 2 + 3 ?", answers=("5",), profile="code", family="f", grader="function")
ROWS = [{"question": f"What is {n} + 3 ?", "answer": str(n + 3), "profile": "code"} for n in range(20)]
WORLD = "world.companies=20"
"""A small one is made faster."""
HALF = 0.5


def half(task: Task, answer: str) -> float:
    """Uses a name of its module, as a user's function does."""
    return HALF


async def later(task: Task, answer: str) -> bool:
    await asyncio.sleep(0)
    return answer in task.answers


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def started(here: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What `coa train` would begin with; it writes a report, and nothing starts."""
    seen: list[Any] = []

    def run(config: Recipe, console: object) -> None:
        holder = json.loads(Path(config.run_dir, "lease.json").read_text())
        seen.append((config, holder["pid"], os.environ.get(VARIABLE)))
        Path(config.run_dir, "report.json").write_text('{"seed": 0}')

    monkeypatch.setattr(api.train_command, "COMMAND", replace(api.train_command.COMMAND, run=run))
    return seen


def graded(answer: str) -> float:
    return asyncio.run(grade_by_user(answer, TASK))


def test_settings_are_those_of_the_command_line() -> None:
    assert overrides_of({"rl": {"steps": 5, "window.max_staleness": 0}, "run_dir": "a: b"}) == [
        *("rl.steps=5", "rl.window.max_staleness=0", 'run_dir="a: b"')
    ]
    assert overrides_of(["rl.steps=5"]) == ["rl.steps=5"]
    with pytest.raises(UserError, match=r"^settings is 'rl.steps=5', expected a list"):
        overrides_of("rl.steps=5")


def test_a_run_is_begun_as_the_command_begins_it(started: list[Any], here: Path) -> None:
    run = coa.train(
        "tiny", tasks=ROWS, reward=half, settings={"distill": {"runs": 7}, "world.companies": 20}, run_dir="runs/mine"
    )
    [(config, pid, function)] = started
    assert (config.distill.runs, config.run_dir, config.tasks.grader) == (7, "runs/mine", "function")
    assert pid == os.getpid(), "the folder is held"
    assert function
    assert VARIABLE not in os.environ, "given for the run alone"
    rows = [json.loads(line) for line in Path(config.tasks.path).read_text().splitlines()]
    assert rows == ROWS
    assert (run.folder, run.model, run.report) == (here / "runs/mine", here / "runs/mine/model", {"seed": 0})
    coa.train("tiny", tasks=ROWS, settings=[WORLD], run_dir="runs/mine")
    assert started[1][0].tasks.path == config.tasks.path, "the same rows are the same tasks"


def test_a_mistake_is_the_line_that_the_command_prints_and_leaves_nothing(started: list[Any], here: Path) -> None:
    for arguments, line in (
        ({"settings": {"rl.stepz": 1}}, r"^rl\.stepz=1: unknown key rl\.stepz; the nearest known key is rl\.steps$"),
        ({"settings": {"rl.steps": -1}}, r"^rl\.steps is -1, expected at least 0$"),
        ({"settings": ["model.path=./gone"]}, r"^model\.path gone: no model there \(no config\.json\)$"),
        ({"tasks": "gone.jsonl"}, r"^gone\.jsonl: cannot be read"),
        ({"tasks": [{"question": {1, 2}}]}, r"^tasks: row 1 is not plain JSON: \{1, 2\} is a set"),
        ({"reward": "exact"}, r"^reward is 'exact', expected a function \(task, answer\) -> float$"),
        ({"reward": lambda task: 1.0}, r"^reward failed at task \S+: TypeError: "),
        ({"reward": lambda task, answer: 5}, r"^reward is 5 at task \S+, expected from 0 \(wrong\) to 1 \(right\)$"),
    ):
        with pytest.raises(UserError, match=line):
            coa.train("tiny", **{"settings": [WORLD], "run_dir": "run", **arguments})
    with pytest.raises(UserError, match=r"^gone: no model there \(no config\.json\)$"):
        coa.evaluate("gone", tasks=ROWS)
    with pytest.raises(UserError, match=r"^gone: no model there \(no config\.json\)$"):
        coa.load_agent("gone")
    assert [path.name for path in here.iterdir()] == ["runs"]
    assert [path.name for path in (here / "runs").iterdir()] == ["tasks"]
    assert not started


def test_a_function_is_the_grader_only_where_a_program_gives_it(started: list[Any], here: Path) -> None:
    with pytest.raises(UserError, match=r"^the grader 'function' is a function that a program gives: coa\.train\("):
        coa.train("tiny", tasks=[{**row, "grader": "function"} for row in ROWS], settings=[WORLD], run_dir="run")


def test_rows_may_hold_what_numpy_and_pandas_make(here: Path) -> None:
    frame = pandas.DataFrame({"question": ["a ?", "b ?"], "answer": [7, 8], "family": ["x", None]})
    rows = [*frame.to_dict("records"), {"question": "c ?", "answer": np.array(["9", "nine"])}]
    rows += [{"question": "d ?", "answer": Decimal("7.50")}, {"question": "e \ud800 ?", "answer": (np.float32(0.5),)}]
    tasks = load_tasks(api._as_file(rows))
    assert [task.answers for task in tasks] == [("7",), ("8",), ("9", "nine"), ("7.50",), ("0.5",)]
    assert tasks[4].question == "e ? ?"
    unusable: list[tuple[Any, str]] = [
        (frame, r"^tasks: row 1 is 'question', expected a mapping .*to_dict\('records'\)"),
        ([{"question": "a ?", "answer": pandas.NA}], "^tasks: row 1 is not plain JSON: <NA> is a NAType"),
        ([{"question": "a ?", "answer": 10**5000}], "^tasks: row 1 is not plain JSON: Exceeds the limit"),
    ]
    for tasks, said in unusable:
        with pytest.raises(UserError, match=said):
            api._as_file(tasks)
    with pytest.raises(UserError, match=r"line 1: no `answer`: .*; `answer` is NaN$"):
        load_tasks(api._as_file([{"question": "a ?", "answer": np.float64("nan")}]))


def test_what_a_job_raises_is_raised(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(config: Recipe, console: object) -> None:
        raise ExceptionGroup("unhandled errors in a TaskGroup", [ZeroDivisionError("lost")])

    monkeypatch.setattr(api.train_command, "COMMAND", replace(api.train_command.COMMAND, run=broken))
    with pytest.raises(ZeroDivisionError, match="lost"):
        coa.train("tiny", tasks=ROWS, settings=[WORLD], run_dir="run")


def test_a_job_is_not_begun_within_an_event_loop(started: list[Any]) -> None:
    async def cell() -> None:
        coa.train("tiny", settings=[WORLD], run_dir="run")

    with pytest.raises(UserError, match="within an event loop, such as a notebook's"):
        asyncio.run(cell())


def test_a_function_grades_where_its_module_can_not_be_imported(tmp_path: Path) -> None:
    code = """
import asyncio
from coa.user_reward import grade_by_user
from coa.types import Task
task = Task(id="t", question="?", answers=("5",), profile="code", family="f")
print([asyncio.run(grade_by_user(answer, task)) for answer in ("5", "6", "")])
"""
    (tmp_path / "coa").symlink_to(ROOT / "coa")  # and not the tests
    for function, told in ((half, "[0.5, 0.5, 0.0]"), (later, "[1.0, 0.0, 0.0]")):
        environment = {**os.environ, VARIABLE: packed(function), "PYTHONPATH": str(tmp_path)}
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == told, done.stderr


def test_a_function_that_fails_or_holds_too_much_is_told() -> None:
    with (
        user_reward(lambda task, answer: 1 / 0),
        pytest.raises(UserError, match=r"^reward failed at task t: ZeroDivision"),
    ):
        graded("5")
    data = os.urandom(80_000)
    with pytest.raises(UserError, match=r"^reward takes 10\d,\d+ bytes, more than 100,000"):
        packed(lambda task, answer: len(data))
    lock = threading.Lock()
    with pytest.raises(UserError, match=r"^reward can't be sent to other processes: cannot pickle "):
        packed(lambda task, answer: lock.locked())
    with user_reward(half), user_reward(later):
        assert graded("5") == 1.0
    assert VARIABLE not in os.environ


def test_an_agent_returns_its_answer_with_the_chain_and_the_cost() -> None:
    def ask(answer: Any = echo) -> api.Answered:
        agent = ServedAgent(Saying(*SEARCHES), ToolCaller(Answering(answer), "ask"), codec=tag_codec(), retry=AT_ONCE)
        return asyncio.run(answered(agent, request_of(replace(Recipe(), agent=AGENT), "Who ?", "mhqa")))

    found = ask()
    assert (found.answer, found.status) == ("1", Status.ANSWERED)
    assert found.chain == (
        *(Span("plan", "p"), Span("wiki_search", "x"), Span("observation", "x!")),
        Span("answer", "1"),
    )
    assert (found.cost.output_tokens, found.cost.input_tokens, found.cost.tool_calls, found.cost.turns) == (
        11,
        27,
        1,
        2,
    )

    async def down(call: ToolCall) -> ToolDown:
        return ToolDown("the search is down")

    with pytest.raises(InfrastructureError, match="the search is down"):
        ask(down)


@pytest.mark.slow
def test_the_documented_program_trains_evaluates_and_asks(tmp_path: Path) -> None:
    program = ROOT / "docs" / "examples" / "from_python.py"
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    *_, answer, chain = done.stdout.splitlines()
    assert answer.endswith("answered 1 tool calls")
    assert "'plan'" in chain
    found = dict(line.split(": ") for line in done.stdout.splitlines() if line.startswith(("held out", "six others")))
    assert float(found["held out"]) >= 0.9
    assert float(found["six others"]) >= 0.5
    assert (tmp_path / "runs/sums/report.json").exists()
