"""What all imports share: the table of tools, and the command."""

import json
from pathlib import Path

import pytest

from coa.distill import to_chain
from coa.errors import UserError
from coa.grammar import Span
from coa.imports import read_tools
from coa.teachers.store import read_transcripts
from jobs.import_runs import run as import_command
from tests.imported_runs import QUESTION, USER, Session, asks, imported, says, spans


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
    ("text", "told"),
    [
        ("a: send", "'send' is no tool"),
        ("a: {tag: code, arg: x}", "expected a tag"),
        ("- a", "expected a table"),
        ("a: [", "cannot be read"),
    ],
)
def test_a_table_that_cannot_be_is_a_persons_mistake(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "tools.yaml").write_text(text)
    with pytest.raises(UserError, match=told):
        read_tools(tmp_path / "tools.yaml")


def test_the_table_in_the_documents_is_one(tmp_path: Path) -> None:
    shown = (Path(__file__).parents[1] / "docs/recording.md").read_text().split("```yaml\n")[1].split("```")[0]
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
    path = import_command("recorded", runs, str(tasks), tmp_path / "out", profile="mhqa")
    told = capsys.readouterr().out
    assert "imported: answered" in told
    assert "refused: a tool that nobody has mapped" in told
    assert "send_mail" in told
    kept = list(read_transcripts(path.parent))
    assert [(run.transcript.task.profile, run.transcript.attempt, run.correct) for run in kept] == [
        ("mhqa", 0, None),
        ("mhqa", 1, None),
    ]
    assert to_chain(kept[0].transcript)[1] == Span("wiki_search", "a")


@pytest.mark.parametrize(
    ("form", "runs", "of", "told"),
    [
        ("langchain", ".", None, "unknown format 'langchain'"),
        ("recorded", "gone", None, "no such file"),
        ("recorded", ".", "chess", "unknown profile 'chess'"),
        ("smolagents", "tasks.jsonl", None, "none of the 1 runs there could be imported as smolagents"),
    ],
)
def test_a_persons_mistakes(form: str, runs: str, of: str | None, told: str, tmp_path: Path) -> None:
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text(json.dumps({"question": QUESTION, "answer": "Berg"}))
    with pytest.raises(UserError, match=told):
        import_command(form, tmp_path / runs, str(tasks), tmp_path / "out", profile=of)
    assert not (tmp_path / "out").exists()
