"""Transcripts on disk: what is read is what was written."""

from pathlib import Path

import pytest

from coa.errors import UserError
from coa.teams.store import names_in, read_transcripts, write_transcripts
from coa.teams.teams import TeamConfig
from coa.teams.transcript import AgentStep, Ending, Graded, ToolStep, Transcript
from coa.tools.base import ToolCall
from coa.types import Task
from coa.usage import Usage
from tests.support.teams import TASKS, play_one

TASK = Task(id="t", question="Who ?", answers=("x", "y"), profile="mhqa", family="f")


def of(*steps: AgentStep | ToolStep) -> Transcript:
    return Transcript(
        task=TASK, attempt=3, seed=2**63 - 1, steps=steps, ending=Ending.OUT_OF_STEPS, models=(("a", "m"),)
    )


def test_runs_come_back_as_they_were(tmp_path: Path) -> None:
    call = ToolCall("wiki_search", "a", goal="g", layout="json")
    steps = (AgentStep("planner", "<plan> p</plan>", 1, Usage(1, 2, 3)), ToolStep(call, "seen", 2))
    debate = TeamConfig(rules="debate")
    runs = [Graded(of(*steps), None, "it guessed"), *(Graded(play_one(task, team=debate), True) for task in TASKS[:9])]
    write_transcripts(tmp_path / "transcripts-00000.parquet", runs)
    assert list(read_transcripts(tmp_path)) == runs
    names, usage = names_in(tmp_path / "transcripts-00000.parquet")
    assert names[0] == ("t", 3)
    assert usage == Usage(1, 2, 3)


def test_half_a_surrogate_pair_does_not_cost_a_shard(tmp_path: Path) -> None:
    broken = of(ToolStep(ToolCall("wiki_search", "a"), "from the web: \ud83d"))
    write_transcripts(tmp_path / "one.parquet", [Graded(broken, False)])
    [run] = read_transcripts(tmp_path / "one.parquet")
    [step] = run.transcript.steps
    assert isinstance(step, ToolStep)
    assert step.observation == "from the web: ?"


def test_another_file_is_refused_in_a_line(tmp_path: Path) -> None:
    (tmp_path / "other.parquet").write_text("not parquet")
    with pytest.raises(UserError, match="no transcripts there"):
        list(read_transcripts(tmp_path / "other.parquet"))
