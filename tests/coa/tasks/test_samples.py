"""Programs whose tests are all samples in their question."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from coa.errors import UserError
from coa.tasks.file_tasks import FileTasks, TasksConfig
from coa.tasks.loading import load_tasks
from coa.tasks.remarks import remarks_on
from coa.tasks.samples import has_sample_tests_only, result_name
from coa.tasks.worlds import NoWorld, Settings
from coa.types import Task

LCB = Path(os.environ.get("COA_BENCHMARKS", "../shared/benchmarks")) / "livecodebench_v5.parquet"
STDIN = "Print the sum.\n\nSample Input 1\n\n2\n10 -3\n\nSample Output 1\n\n7\n"
CALL = 'Return the sum.\n\nExample 1:\n\nInput: nums = [1,2], name = "x"\nOutput: [3, "x"]\nExplanation: ..'


def program(question: str, **tests: object) -> Task:
    return Task(id="p", question=question, answers=(json.dumps(tests),), profile="code", family="mine", grader="tests")


def stdin(*pairs: tuple[str, str]) -> list[dict[str, str]]:
    return [{"input": fed, "output": wanted} for fed, wanted in pairs]


@pytest.mark.parametrize(
    "task",
    [
        program(STDIN, stdin=stdin(("2\n10  -3\n", "7\n"))),
        program(CALL, functional=[{"input": '[1, 2]\n"x"', "output": '[3, "x"]'}], fn_name="f"),
        program(CALL, assertions="assert f([1, 2], name='x') == [3, 'x']"),
        replace(program("Add.", stdin=stdin(("1", "2"))), family="livecodebench_v5/sample_tests"),
    ],
)
def test_tests_that_the_question_shows_are_samples(task: Task) -> None:
    assert has_sample_tests_only(task)


@pytest.mark.parametrize(
    "task",
    [
        program(STDIN, stdin=stdin(("2\n10 -3\n", "7\n"), ("1\n5\n", "5\n"))),
        program(STDIN, stdin=stdin(("2\n10 -3\n", "8\n"))),
        program("From 7 to 10 print the 2 numbers.", stdin=stdin(("10", "7"))),
        program("Numbers like 17 give 289.", stdin=stdin(("7", "9"))),
        program(f"Given 2, {'think of it, and ' * 20} print 4.", stdin=stdin(("2", "4"))),
        program(STDIN, stdin=stdin(("1" * 5000, "2" * 5000))),
        replace(program(STDIN), grader="exact", answers=("7",)),
        replace(program(STDIN), answers=("no tests",)),
    ],
)
def test_other_tests_are_no_samples(task: Task) -> None:
    assert not has_sample_tests_only(task)


@pytest.mark.skipif(not LCB.exists(), reason=f"no {LCB} (set COA_BENCHMARKS)")
def test_the_published_file_has_sample_tests_only_and_the_text_shows_it() -> None:
    tasks = load_tasks(LCB)
    assert all(map(has_sample_tests_only, tasks))
    assert sum(has_sample_tests_only(replace(task, family="x")) for task in tasks) == 166
    assert list(remarks_on("lcb", tasks)) == [
        "lcb: 167 of 167 tasks have sample tests only: a table of the samples in the question passes for a program"
    ]


def world(folder: Path, *rows: dict[str, str], sample_tests: bool = False) -> FileTasks:
    path = folder / "t.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return FileTasks(TasksConfig(path=str(path), profile="code", sample_tests=sample_tests), NoWorld(Settings()))


def test_rl_leaves_out_programs_with_sample_tests_unless_the_recipe_takes_them(tmp_path: Path) -> None:
    samples = [
        {"question": f"Task {n}\n{STDIN}", "answer": json.dumps({"stdin": stdin(("2\n10 -3\n", "7\n"))})}
        for n in range(10)
    ]
    hidden = [{"question": f"Add {n}.", "answer": json.dumps({"stdin": stdin(("1 2", "3"))})} for n in range(10)]
    some = world(tmp_path, *samples, *hidden)
    kinds = {
        purpose: {some.training_task(purpose, index, seed=0).question[:3] for index in range(100)}
        for purpose in ("rl", "distill")
    }
    assert kinds == {"rl": {"Add"}, "distill": {"Add", "Tas"}}
    told = list(some.remarks())
    assert told[0].endswith(
        "t.jsonl: 10 of 20 tasks have sample tests only: a table of the samples in the question passes for a program"
    )
    assert told[1].endswith("training tasks, which have sample tests only (tasks.sample_tests=true keeps them)")
    held_out = sum(task.question.startswith("Task") for task in some.evaluation_tasks(0, seed=0))
    assert told[1].startswith(f"RL leaves out {10 - held_out} of the 16 ")
    every = world(tmp_path, *samples, *hidden, sample_tests=True)
    assert {every.training_task("rl", index, seed=0).question[:3] for index in range(100)} == {"Add", "Tas"}
    assert len(list(every.remarks())) == 1
    with pytest.raises(
        UserError, match=r"t\.jsonl: all 8 training tasks have sample tests only, and RL leaves these out"
    ):
        world(tmp_path, *samples).training_task("rl", 0, seed=0)


def test_a_result_on_sample_tests_is_named_so() -> None:
    every = {"n": 3, "sample_tests_only": 3}
    assert result_name("mine", every) == "mine (sample tests only)"
    assert result_name("mine", every | {"sample_tests_only": 2}) == "mine (2 tasks: sample tests only)"
    assert result_name("mine", {"n": 3}) == "mine"
