"""Half a surrogate pair, which JSON can hold and UTF-8 cannot, in everything that a run writes."""

import json
from pathlib import Path

import pyarrow.parquet as pq

from coa.agent.records import EpisodeRecord
from coa.reporting.page import Example, write_report
from coa.storage.files import write_atomically
from coa.tasks.loading import load
from coa.types import Status, Task
from coa.unicode import is_whole, whole
from jobs.run.trajectories import write_episodes

HALF = "x\ud83d"


def test_halves_become_question_marks_and_whole_pairs_stay() -> None:
    assert whole("größe 😀 東京") == "größe 😀 東京"
    assert whole(f"{HALF}y\udcff") == "x?y?"
    assert [is_whole(text) for text in ("", "a", "ö", "😀", HALF)] == [True, True, True, True, False]


def test_a_task_has_none_wherever_it_comes_from(tmp_path: Path) -> None:
    task = Task(id=HALF, question=HALF, answers=(HALF, "ö"), profile="code", family=HALF)
    assert task == Task(id="x?", question="x?", answers=("x?", "ö"), profile="code", family="x?")
    path = tmp_path / "tasks.jsonl"
    path.write_text(json.dumps({"question": HALF, "answer": HALF, "family": HALF, "profile": "code"}) + "\n")
    [read] = load(str(path))
    assert (read.question, read.answers, read.family) == ("x?", ("x?",), "x?")


def test_episodes_and_pages_are_written_with_what_a_program_said(tmp_path: Path) -> None:
    task = Task(id="t", question=HALF, answers=(HALF,), profile="code", family=HALF)
    episode = EpisodeRecord(
        sample=0,
        grade=0.0,
        reward=0.0,
        correct=False,
        well_formed=True,
        repairs=(),
        status=Status.ANSWERED,
        answer=HALF,
        text=HALF,
        turns=1,
        tool_calls=("code",),
        tokens=1,
        policy_tokens=1,
        tokens_sent=1,
        oldest=0,
        newest=0,
    )
    write_episodes(tmp_path / "episodes.parquet", [(task, 0, episode)])
    [row] = pq.read_table(tmp_path / "episodes.parquet").to_pylist()
    assert (row["question"], row["answer"], row["text"], row["family"]) == ("x?", "x?", "x?", "x?")
    metrics = [{"stage": "rl", "step": step, f"reward/{HALF}": 0.5, "reward": 0.5} for step in (1, 2)]
    example = Example(task=task, made_by="RL", text=HALF, correct=False)
    write_report(tmp_path, {"seed": 1}, metrics, [example], title=HALF)
    assert "x?" in (tmp_path / "report.html").read_text(encoding="utf-8")
    write_atomically(tmp_path / "text", HALF)
    assert (tmp_path / "text").read_text(encoding="utf-8") == "x?"
