"""A user's mistakes, on the real command line: one clear line, exit status 2, nothing written."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from jobs.cli import main

ROW = {"question": "What is 2 + 3 ?", "answer": "5"}
MODEL = ("models.m.endpoint.name=x", "team.model=m")


def tasks_file(folder: Path, *rows: Mapping[str, object]) -> Path:
    path = folder / "tasks.jsonl"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def mistake(capfd: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that the command prints, without its `coa: `."""
    assert main(words) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert told.err.startswith("coa: ")
    assert told.err.endswith("\n")
    assert told.err.count("\n") == 1
    return told.err.removeprefix("coa: ").removesuffix("\n")


def evaluate(capfd: pytest.CaptureFixture[str], folder: Path, *words: str) -> str:
    """What `coa evaluate` says, with a model that is there."""
    (folder / "model").mkdir(exist_ok=True)
    (folder / "model" / "config.json").write_text("{}")
    told = mistake(capfd, "evaluate", "--model", "model", *words)
    assert not (folder / "runs").exists()
    return told
