"""The documents' commands on a finished run, as they stand there."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.jobs.test_train import SETTINGS
from tests.project.test_docs import COMMANDS, ROOT
from tests.support.documented import runs_here

LIMIT_S = 600
ALLOWED = {"coa doctor": {0, 1}, "coa plan": {0, 1}, "coa train --recipe web_32b --dry-run": {2}}
"""Statuses other than 0 that say something of this machine or of the recipe, and not of the command, by how a command
begins: the data of web_32b is not here."""

pytestmark = pytest.mark.slow


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `runs/demo`, of few steps, and `questions.jsonl`."""
    folder = tmp_path_factory.mktemp("documented")
    rows = [{"question": f"What is {a} * 2 - 4 ?", "answer": str(a * 2 - 4), "profile": "code"} for a in range(4)]
    (folder / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    small = " ".join((*SETTINGS, "evaluation.tasks=8"))
    done = run(folder, f"coa train --recipe tiny {small}")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("command", [command for command in COMMANDS if runs_here(command)])
def test_a_documented_command_works(here: Path, command: str) -> None:
    done = run(here, command)
    allowed = next((statuses for begins, statuses in ALLOWED.items() if command.startswith(begins)), {0})
    assert done.returncode in allowed, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
