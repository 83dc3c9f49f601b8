"""What all imports share: the table of tools, and the command."""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.teachers.team import Outcome
from actors.tools.remote import ToolClient
from coa.agent.grammar import Span
from coa.config import load
from coa.distill import to_chain
from coa.distill.sources import read_tools
from coa.errors import UserError
from coa.teams.store import graders_in, read_transcripts, write_transcripts
from coa.teams.transcript import Ending, Graded, Transcript
from coa.types import Task
from jobs.cli import main
from jobs.commands.import_runs import run as import_command
from jobs.recipe.checks import check_run
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.stages.distill import existing_runs, to_be_graded_by
from tests.support.imported_runs import QUESTION, USER, Session, asks, holds, imported, says, spans


def test_a_file_extends_the_table(tmp_path: Path) -> None:
    table = tmp_path / "tools.yaml"
    table.write_text("ask_the_web: web_search\nhire: {tag: wiki_search, argument: job}\nsay: answer\n")
    (tmp_path / "runs").mkdir()
    hired = asks("hire", {"query": "not this", "job": "find Nora"}, "A.")
    Session(tmp_path / "runs").loop([USER], hired, asks("say", {"it": "Berg"}))
    [transcript] = imported("recorded", tmp_path / "runs", table=read_tools(table))
    assert spans(transcript)[1:] == [("wiki_search", "find Nora"), ("observation", "seen"), ("answer", "Berg")]
    (tmp_path / "tools.json").write_text('{"ask_the_web": {"tag": "web_search"}}')
    assert read_tools(tmp_path / "tools.json")["ask_the_web"].tags == ("web_search",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: send", "'send' is not a tool"),
        ("a: {tag: code, arg: x}", "expected a tag"),
        ("- a", "expected a table"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_is_a_persons_mistake(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(text)
    with pytest.raises(UserError, match=message):
        read_tools(tmp_path / "tools.yaml")


def test_the_table_in_the_documents_is_one(tmp_path: Path) -> None:
    shown = (Path(__file__).parents[4] / "docs/recording.md").read_text().split("```yaml\n")[1].split("```")[0]
    (tmp_path / "tools.yaml").write_text(shown)
    table = read_tools(tmp_path / "tools.yaml")
    assert [table[name].tags for name in ("ask_the_web", "librarian", "submit")] == [
        ("web_search",),
        ("wiki_search",),
        ("answer",),
    ]


def test_the_command_writes_transcripts_and_tells_what_it_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = tmp_path / "runs"
    runs.mkdir()
    for name in ("a", "b"):
        Session(runs, name).loop([USER], asks("search", {"query": "a"}, "A."), says("Berg"))
    Session(runs, "c").loop([USER], asks("send_mail", {"to": "a"}), says("Berg"))
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"id": "t1", "question": QUESTION, "answer": "Berg", "profile": "web"}))
    words = ["import", "--format", "recorded", "--runs", str(runs), "--tasks", str(tasks), "--profile", "mhqa"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    message = capsys.readouterr().out
    assert "imported: answered" in message
    assert "refused: a tool that nobody has mapped" in message
    assert "send_mail" in message
    kept = list(read_transcripts(tmp_path / "out"))
    assert [(run.transcript.task.profile, run.transcript.attempt, run.correct) for run in kept] == [
        ("mhqa", 0, None),
        ("mhqa", 1, None),
    ]
    assert to_chain(kept[0].transcript)[1] == Span("wiki_search", "a")
    [row] = (json.loads(line) for line in (tmp_path / "out/refused.jsonl").read_text().splitlines())
    assert row == {
        "where": str(runs / "c.jsonl"),
        "reason": "a tool that nobody has mapped",
        "detail": "send_mail",
    }


def test_the_command_tells_which_transition_breaks_and_which_profile_would_fit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = import_one(tmp_path, {"id": "t1", "answer": "Berg"}, "mhqa", asks("wiki", {"query": "a"}))
    shown = capsys.readouterr().out
    assert "of these, `mhqa` forbids `wiki_search` at the start   1   task t1" in shown
    assert "under --profile react, 1 fit." in shown
    again = import_command(
        "recorded", tmp_path / "runs", str(tmp_path / "tasks.jsonl"), tmp_path / "r", profile="react"
    )
    [run] = read_transcripts(again)
    assert holds(run.transcript)
    assert not path.with_name("refused.jsonl").exists()
    assert "forbids" not in capsys.readouterr().out


def test_the_model_of_runs_that_name_none_is_told_by_its_option(tmp_path: Path) -> None:
    log = tmp_path / "run.json"
    log.write_text(json.dumps({"task_id": "t1", "output": "Berg", "steps": [{"task": QUESTION}]}))
    [named] = imported("smolagents", log, model="big-1")
    [unnamed] = imported("smolagents", log)
    assert (named.models, unnamed.models) == ((("agent", "big-1"),), ())


@pytest.mark.parametrize(
    ("row", "profile", "grader"),
    [
        ({}, None, "exact"),
        ({}, "math", "math"),
        ({}, "multi", "judge"),
        ({"profile": "web"}, "mhqa", "exact"),
        ({"profile": "math"}, "mhqa", "math"),
        ({"profile": "web", "grader": "f1"}, "multi", "f1"),
    ],
)
def test_a_run_is_graded_as_the_profile_it_is_imported_under_grades(
    row: dict[str, str], profile: str | None, grader: str, tmp_path: Path
) -> None:
    path = import_one(tmp_path, {"answer": "7", **row}, profile)
    [run] = read_transcripts(path)
    assert run.transcript.task.grader == grader


def recipe(transcripts: Path, *settings: str) -> Recipe:
    folder = f"run_dir={transcripts.parent / 'run'}"
    return load(Recipe, find_recipe("tiny"), [folder, f"distill.transcripts={transcripts}", *settings])


def test_transcripts_are_graded_as_the_recipe_says_and_a_judge_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    path = import_one(tmp_path, {"answer": "Berg"}, "multi")
    with pytest.raises(UserError, match=r"^a judge is needed to grade answers: set tools\.judge\.url"):
        check_run(recipe(path))
    config = recipe(path, "tasks.grader=exact")
    check_run(config)
    [run] = graded_by(config)
    assert (run.correct, run.transcript.task.grader) == (True, "exact")


def graded_by(config: Recipe) -> list[Graded]:
    """What becomes of the recipe's transcripts."""

    async def as_they_are(outcomes: Sequence[Outcome]) -> list[Outcome]:
        return list(outcomes)

    async def main() -> list[Outcome]:
        run, store = SimpleNamespace(config=config), SimpleNamespace(names=set(), failed={})
        stream = existing_runs(cast(Any, run), cast(Any, store), ToolClient(cast(Any, None)), as_they_are)
        return [outcome async for played in stream for outcome in played.outcomes]

    return cast(list[Graded], asyncio.run(main()))


def test_a_judge_is_not_needed_for_what_is_graded_ends_without_an_answer_or_is_not_read(tmp_path: Path) -> None:
    path = import_one(tmp_path, {"answer": "Berg"}, "multi")
    [run] = read_transcripts(path)
    assert graders_in(path.parent) == {"judge"}
    check_run(recipe(path, f"sft.data=[{one_row(tmp_path)}]"))
    write_transcripts(path, [replace(run, correct=False)])
    check_run(recipe(path))
    write_transcripts(path, [replace(run, transcript=replace(run.transcript, ending=Ending.OUT_OF_STEPS))])
    check_run(recipe(path))


def test_programs_among_transcripts_keep_their_tests() -> None:
    task = Task(id="t", question="?", answers=("{}",), profile="code", family="f", grader="tests")
    transcript = Transcript(task=task, attempt=0, seed=0, steps=(), ending=Ending.ANSWERED)
    assert to_be_graded_by("exact", transcript) == transcript
    judged = replace(transcript, task=replace(task, grader="judge"))
    assert to_be_graded_by("exact", judged).task.grader == "exact"
    assert to_be_graded_by(None, judged) == judged


def one_row(folder: Path) -> Path:
    """Data to train on."""
    path = folder / "afm.json"
    path.write_text('[{"instruction": "Who ?", "output": "Berg"}]')
    return path


def import_one(folder: Path, row: dict[str, str], profile: str | None, *before: dict[str, Any]) -> Path:
    """A run whose answer is "Berg", imported; before: what it says until then."""
    (folder / "runs").mkdir()
    Session(folder / "runs").loop([USER], *before, says("Berg"))
    tasks = folder / "tasks.jsonl"
    tasks.write_text(json.dumps({"question": QUESTION, **row}))
    return import_command("recorded", folder / "runs", str(tasks), folder / "out", profile=profile)


@pytest.mark.parametrize(
    ("form", "runs", "of", "message"),
    [
        ("langchain", ".", None, "unknown format 'langchain'"),
        ("recorded", "gone", None, "no such file"),
        ("recorded", ".", "chess", "unknown profile 'chess'"),
        ("smolagents", "tasks.jsonl", None, "none of the 1 runs there could be imported as smolagents"),
    ],
)
def test_a_persons_mistakes(form: str, runs: str, of: str | None, message: str, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"question": QUESTION, "answer": "Berg"}))
    with pytest.raises(UserError, match=message):
        import_command(form, tmp_path / runs, str(tasks), tmp_path / "out", profile=of)
    assert not list(tmp_path.glob("out/*.parquet"))
