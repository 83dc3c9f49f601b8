"""What `coa verify` prints of a run: its balance, and the tables by length and by tool calls."""

import json
from pathlib import Path
from typing import Any

import pytest

from coa.storage.checkpoints import RECORD
from jobs.cli import main
from jobs.run import console

BY_LENGTH, BY_CALLS = "by tokens of the longest episode", "by the most tool calls of an episode"


def play(group: int, tokens: int, calls: int) -> dict[str, Any]:
    return {"what": "play", "group": group, "tokens": tokens, "calls": calls}


def drop(group: int, reason: str, tokens: int, calls: int, *, again: bool) -> dict[str, Any]:
    return {"what": "drop", "group": group, "reason": reason, "again": again, "tokens": tokens, "calls": calls}


LINES = [
    {"what": "start", "start": 0, "version": 0, "cursor": [0]},
    *({"what": "issue", "group": n, "task": n, "version": 0} for n in range(7)),
    play(0, 60, 0),
    play(1, 64, 1),
    {"what": "lease", "version": 0, "groups": [0, 1]},
    play(2, 65, 1),
    drop(3, "no_variance", 128, 2, again=False),
    drop(4, "ToolDown", 100, 2, again=True),
    play(5, 50, 0),
    {"what": "lease", "version": 1, "groups": [2, 5]},
]
"""Groups 0, 1, 2 and 5 are in batches, 3 says nothing, 4 failed, 6 is being played."""


def write(folder: Path, lines: list[dict[str, Any]]) -> None:
    (folder / "ledger.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))


def keep_checkpoint(folder: Path, version: int) -> None:
    """As Ray Train does, which has a checkpoint's name in its record once the checkpoint is whole."""
    stage = folder / "checkpoints" / "rl"
    name = f"checkpoint_{version}"
    (stage / name).mkdir(parents=True)
    (stage / name / "progress.json").write_text(json.dumps({"version": version, "cursor": [0]}))
    (stage / RECORD).write_text(json.dumps({"checkpoint_results": [{"checkpoint_dir_name": name, "metrics": {}}]}))


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Any:
    """A function that runs the command, and returns its lines, with one space between words."""
    monkeypatch.setattr(console, "PLAIN_WIDTH", 200)

    def run(status: int = 0) -> list[str]:
        assert main(["verify", str(tmp_path)]) == status
        return [" ".join(line.split()) for line in capfd.readouterr().out.splitlines()]

    return run


def rows(lines: list[str], title: str) -> list[str]:
    """The header and the rows of the table of this title."""
    header, _, *rest = lines[lines.index(title) + 1 :]
    ends = next((at for at, line in enumerate(rest) if line.startswith("by ")), len(rest))
    return [header, *rest[:ends]]


def test_the_tables_count_by_length_and_by_tool_calls(tmp_path: Path, said: Any) -> None:
    write(tmp_path, LINES)
    keep_checkpoint(tmp_path, 1)
    lines = said()
    assert lines[0] == "issued 7 = trained 2 + dropped 2 (no_variance 1, ToolDown 1) + open 3"
    assert lines[1] == "learners started 1 times; the last known checkpoint is at version 1; not finished"
    header = "issued trained no variance ToolDown open lost again delay"
    assert rows(lines, BY_LENGTH) == [
        header,
        "not played 1 0 0 0 1 0.0% 0 -",
        "up to 64 3 2 0 0 1 0.0% 0 0.33",
        "up to 128 3 0 1 1 1 33.3% 1 1.00",
    ]
    assert rows(lines, BY_CALLS) == [
        header,
        "not played 1 0 0 0 1 0.0% 0 -",
        "0 2 1 0 0 1 0.0% 0 0.50",
        "1 2 1 0 0 1 0.0% 0 0.50",
        "2 2 0 1 1 0 50.0% 1 -",
    ]


def test_what_a_restart_cuts_off_is_in_the_row_of_its_length(tmp_path: Path, said: Any) -> None:
    back = {"what": "start", "start": 1, "version": 1, "cursor": [7, 2, 3, 4, 5, 6]}
    again = {"what": "issue", "group": 10, "task": 6, "version": 1}
    write(tmp_path, [*LINES, back, again, play(10, 200, 4)])
    lines = said()
    assert rows(lines, BY_LENGTH)[-1] == "up to 256 2 0 1 0 1 50.0% 1 -"
    assert rows(lines, BY_CALLS)[-1] == "4 2 0 1 0 1 50.0% 1 -"
    assert not any(line.startswith("not played") for line in lines)


def test_a_batch_is_trained_once_a_checkpoint_behind_it_is_kept(tmp_path: Path, said: Any) -> None:
    write(tmp_path, LINES)
    assert said()[0].startswith("issued 7 = trained 0 ")
    keep_checkpoint(tmp_path, 2)
    assert said()[0].startswith("issued 7 = trained 4 ")
    (tmp_path / "checkpoints" / "rl" / RECORD).write_text('{"checkpoint_results": [{"checkpo')
    assert said()[0].startswith("issued 7 = trained 0 "), "it is being written"
    keep_checkpoint(tmp_path, 3)
    assert said(status=1)[-1] == "the ledger does not balance: 1 faults"


def test_a_task_that_is_open_at_the_end_is_a_fault(tmp_path: Path, said: Any) -> None:
    write(tmp_path, [*LINES, play(6, 9, 0), {"what": "lease", "version": 2, "groups": [6]}])
    said()
    write(
        tmp_path,
        [*LINES, play(6, 9, 0), {"what": "lease", "version": 2, "groups": [6]}, {"what": "finish", "version": 3}],
    )
    assert said(status=1)[-2].endswith("line 19: task 4 is open: it was to be issued again, and was not")
