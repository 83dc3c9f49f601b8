"""Mistakes in tasks, benchmarks and how they are graded: one line names them, and nothing is written."""

import re
from pathlib import Path

import pytest

from coa.config import load
from jobs.recipe.checks import check_run
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from tests.support.mistakes import ROW, evaluate, mistake, tasks_file


def test_a_missing_or_unreadable_tasks_file(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "tasks.path=gone.jsonl")
    assert told.startswith("gone.jsonl: cannot be read")
    (here / "bad.parquet").write_text("not parquet")
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "tasks.path=bad.parquet")
    assert told.startswith("bad.parquet: not a Parquet file")
    assert [path.name for path in here.iterdir()] == ["bad.parquet"]


def test_a_row_without_an_answer_names_file_and_line(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = tasks_file(here, ROW, {"question": "What is 4 + 4 ?"})
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", f"tasks.path={tasks}")
    assert told.startswith(f"{tasks}, line 2: no `answer`")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "no tasks in it"),
        ("hello\n", "line 1: not JSON: Expecting value at column 1"),
        ('{"question": "?", "answer": "x", "profile": "wizard"}', "line 1: unknown profile 'wizard': known are code, "),
        ('{"question": "?", "answer": "x", "grader": "guess"}', "line 1: unknown grader 'guess': known are exact, "),
    ],
)
def test_a_tasks_file_that_holds_none(here: Path, capfd: pytest.CaptureFixture[str], content: str, said: str) -> None:
    (here / "t.jsonl").write_text(content)
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", "tasks.path=t.jsonl")
    assert re.match(rf"t\.jsonl[:,] {re.escape(said)}", told)


@pytest.mark.parametrize(("share", "training", "held_out"), [("0", 3, 0), ("1", 0, 3), ("0.1", 3, 0)])
def test_a_held_out_share_that_leaves_nothing(
    here: Path, capfd: pytest.CaptureFixture[str], share: str, training: int, held_out: int
) -> None:
    path = tasks_file(here, *(ROW | {"question": f"{n} ?"} for n in range(3)))
    told = mistake(capfd, "train", "--recipe", "tiny", "run_dir=run", f"tasks.path={path}", f"tasks.held_out={share}")
    assert told == (
        f"tasks.held_out={share} of the 3 tasks of {path} leaves {training} to train on and {held_out} held out; both "
        "are needed"
    )


def test_a_recipe_without_tasks(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (here / "mine.yaml").write_text("run_dir: run\n")
    told = mistake(capfd, "train", "--recipe", "./mine.yaml")
    known = "tiny, reasoning_gym, documents"
    assert told == f"there are no tasks: set tasks.path to a file of yours, or tasks.world to one of {known}"


def test_a_model_without_a_world_and_no_tasks(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = evaluate(capfd, here)
    assert told == "--tasks is needed: the model's training world has no tasks of its own (world.json)"


def test_an_unknown_benchmark(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = evaluate(capfd, here, "--tasks", "olympiad")
    assert told == "no benchmark 'olympiad'; the nearest is olympiadbench (`coa evaluate --benchmarks` lists them)"


def test_a_benchmark_that_cannot_be_fetched(
    here: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(here / "cache"))
    told = evaluate(capfd, here, "--tasks", "aime24")
    assert told.startswith("math-ai/aime24 can't be fetched from Hugging Face (NAME=PATH reads a copy): ")


def test_a_row_that_is_not_of_the_benchmark(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = tasks_file(here, {"problem": "1 + 1 ?", "answer": "2"}, {"problem": "1 + 2 ?"})
    told = evaluate(capfd, here, "--tasks", f"aime25={tasks}")
    assert told == f"{tasks}, line 2: no `answer`; the row has 'problem'"


def test_a_judge_that_is_needed_and_not_set_up(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    told = evaluate(capfd, here, "--tasks", f"gaia={tasks_file(here, ROW)}")
    assert "tools.judge." in told


def test_tasks_of_the_web_want_a_judge_or_another_grader(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    path = tasks_file(here, *({"question": f"{n} ?", "answer": "x", "profile": "web"} for n in range(20)))
    settings = ["run_dir=run", f"tasks.path={path}"]
    told = mistake(capfd, "train", "--recipe", "tiny", *settings)
    assert told.startswith("a judge is needed to grade answers: set tools.judge.url")
    check_run(load(Recipe, find_recipe("tiny"), [*settings, "tasks.grader=exact"]))
    for key, known in (("grader", "exact, exact_first, f1"), ("profile", "code, math, mhqa")):
        told = mistake(capfd, "train", "--recipe", "tiny", *settings, f"tasks.{key}=exat")
        assert told.startswith(f"tasks.{key} is 'exat': known are {known}")


@pytest.mark.parametrize("setting", ["samples=0", "temperature=-1", "top_p=0", "top_p=1.5", "top_k=-1"])
def test_decoding_that_cannot_be(here: Path, capfd: pytest.CaptureFixture[str], setting: str) -> None:
    told = evaluate(capfd, here, "--tasks", str(tasks_file(here, ROW)), f"evaluation.{setting}")
    key, _, value = setting.partition("=")
    assert told.startswith(f"evaluation.{key} is {value}, expected ")


def test_nothing_to_choose_from(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tasks = str(tasks_file(here, ROW))
    assert evaluate(capfd, here, "--tasks", tasks, "--best-of", "1").startswith("--best-of 1: there is nothing to ")
    told = "tasks is decoded greedily, and all of its attempts are the same: set evaluation.temperature"
    assert evaluate(capfd, here, "--tasks", tasks, "--best-of", "3", "evaluation.temperature=0") == told
    nq = tasks_file(here, {"question": "Who ?", "golden_answers": ["x"]})
    assert evaluate(capfd, here, "--tasks", f"nq={nq}", "--best-of", "3").startswith("nq is decoded greedily")


def test_a_judge_that_the_executor_would_stop(here: Path, capfd: pytest.CaptureFixture[str]) -> None:
    judge = ("tools.judge.url=http://127.0.0.1:1/v1", "tools.judge.model=m", "executor.call_s_of.chooser=5")
    told = evaluate(capfd, here, "--tasks", str(tasks_file(here, ROW)), "--best-of", "3", *judge)
    assert told.endswith("the executor stops it after 5 s: set executor.call_s_of.chooser")
