"""Annexes: features that nothing else needs. Who deletes the files of one loses its commands, and nothing else."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("coa", "actors", "cluster", "jobs")
ANNEXES = {
    "plan": ["jobs/commands/plan"],
    "doctor": ["jobs/commands/doctor"],
    "record": ["jobs/commands/record.py", "coa/distill/sources/recorder"],
    "submit": ["jobs/commands/submit.py", "jobs/submission.py", "jobs/sent.py", "cluster/manifests"],
    "select": ["jobs/commands/select.py", "jobs/stages/select.py"],
    "export": ["jobs/commands/export.py", "coa/distill/dataset/exports.py"],
    "verify": ["jobs/commands/verify.py", "jobs/stages/reinforcement/replay.py"],
    "serve": ["jobs/commands/serve.py", "jobs/serving.py", "jobs/stages/serve.py", "cluster/serving"],
    "tasks": ["jobs/commands/tasks.py", "jobs/stages/tasks.py", "jobs/teachers/workshop.py", "coa/tasks/made"],
    "show": ["jobs/commands/show.py"],
    "keys": ["jobs/commands/keys.py"],
}
"""Files and folders by command."""
CALLS = """
import contextlib, io, json, sys
sys.meta_path = [one for one in sys.meta_path if not one.__module__.startswith("__editable__")]  # it finds the others
from jobs.cli import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as stdout, contextlib.redirect_stderr(io.StringIO()) as stderr:
        try:
            status = main(words)
        except SystemExit as ended:  # after a help text
            status = ended.code
    print(json.dumps([status, stdout.getvalue(), stderr.getvalue()]))
"""


@pytest.fixture
def core(tmp_path: Path) -> Path:
    """The product without its annexes."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in (name for names in ANNEXES.values() for name in names):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return tmp_path


def run(folder: Path, *commands: list[str]) -> list[tuple[int, str, str]]:
    """Status, stdout and stderr of command lines."""
    words = [sys.executable, "-c", CALLS, json.dumps(commands)]
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


def test_the_core_works_without_its_annexes_and_refuses_their_commands_in_a_line(core: Path) -> None:
    train = ["train", "--recipe", "tiny", "--dry-run", "run_dir=run"]
    helped, planned, *refused = run(core, ["--help"], train, *([name] for name in ANNEXES))
    assert [helped] == run(ROOT, ["--help"])
    assert planned[0] == 0
    assert planned[1].endswith("no problem found in what was looked at; nothing was started\n")
    for name, answer in zip(ANNEXES, refused, strict=True):
        assert answer == (2, "", f"coa: jobs.commands.{name} is not installed, and `coa {name}` needs it\n")
