"""`coa show`: who said what, and what is trained."""

from dataclasses import replace
from pathlib import Path

import pytest

from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import write_shard
from coa.errors import UserError
from coa.teams.store import write_transcripts
from coa.teams.transcript import Graded
from coa.types import Task
from jobs.cli import main
from jobs.commands.show import run, shown_of
from tests.support.imported_runs import USER, Session, asks, imported, says, task


def one_run(folder: Path) -> Path:
    """A file of an imported run, whose table its profile forbids, and of another task's."""
    recorded = folder / "recorded"
    recorded.mkdir()
    Session(recorded).loop([USER], asks("wiki", {"query": "Nora Lind"}), says("So.\nFinal answer: Berg"))
    [transcript] = imported("recorded", recorded)
    other = replace(transcript, task=task(name="t2"), attempt=3)
    write_transcripts(folder / "runs.parquet", [Graded(transcript, None), Graded(other, True)])
    return folder / "runs.parquet"


SHOWN = """\
t1, attempt 0, mhqa: answered, ungraded, recorded; forbidden: `wiki_search` at the start
Where was the owner of Vexon Labs born ?
▌agent 1 <wiki_search> Nora Lind
 tool    <observation> seen
▌agent 1 <think> So.
▌agent 1 <answer> Berg
answer `Berg`, accepted `Berg`
▌ is trained

"""


def test_a_run_is_shown_with_its_speakers_and_what_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", str(one_run(tmp_path))]) == 0
    shown = capsys.readouterr().out
    assert [line.rstrip() for line in shown.splitlines()] == SHOWN.splitlines()


def test_what_a_user_said_in_the_middle_is_shown_as_theirs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recorded").mkdir()
    session = Session(tmp_path / "recorded")
    said = session.call([USER], says("Which one?"))
    session.call([*said, {"role": "user", "content": "The one in Arden."}], says("Berg"))
    write_transcripts(tmp_path / "runs.parquet", [Graded(imported("recorded", tmp_path / "recorded")[0], None)])
    run(tmp_path / "runs.parquet")
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()[2:5]] == [
        "▌agent 1 <think> Which one?",
        " user    <observation> The one in Arden.",
        "▌agent 1 <answer> Berg",
    ]


def test_runs_are_chosen_by_task_and_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = one_run(tmp_path)
    run(path, task="t2")
    assert capsys.readouterr().out.startswith("t2, attempt 3, mhqa: answered, right, recorded")
    run(path, rows=5)
    assert capsys.readouterr().out.count("is trained") == 2
    with pytest.raises(UserError, match="no run there of the task t9"):
        run(path, task="t9")
    with pytest.raises(UserError, match="no such file or folder"):
        run(tmp_path / "gone")


def test_rows_of_a_data_set_are_shown_too(tmp_path: Path) -> None:
    text = "<plan> p</plan><wiki_search> a</wiki_search><observation> b</observation><answer> Berg</answer>"
    of = Task(id="t1", question="?", answers=("Berg",), profile="mhqa", family="f")
    write_shard(tmp_path, 0, [Demonstration(task=of, text=text, copies=2, interactions=4)], {})
    [one] = shown_of(tmp_path)
    assert one.about == "kept, 2 copies, team"
    assert [(line.speaker, line.span.tag, line.trained) for line in one.lines] == [
        ("model", "plan", True),
        ("model", "wiki_search", True),
        ("tool", "observation", False),
        ("model", "answer", True),
    ]
