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
    "show": ["jobs/commands/show.py"],
    "keys": ["jobs/commands/keys.py"],
}
"""Files and folders by command."""
CALLS = """
import contextlib, io, json, sys
from jobs.cli import main
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stderr(io.StringIO()) as stderr:
        status = main(words)
    print(json.dumps([status, stderr.getvalue()]))
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


def run(folder: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_core_works_without_its_annexes_and_refuses_their_commands_in_a_line(core: Path) -> None:
    assert run(core, "-m", "jobs.cli", "--help") == run(ROOT, "-m", "jobs.cli", "--help")
    dry_run = run(core, "-m", "jobs.cli", "train", "--recipe", "tiny", "--dry-run", "run_dir=run")
    assert dry_run.splitlines()[-1] == "no problem found in what was looked at; nothing was started"
    answers = run(core, "-c", CALLS, json.dumps([[name] for name in ANNEXES])).splitlines()
    for name, answer in zip(ANNEXES, answers, strict=True):
        module = f"jobs.commands.{name}"
        assert json.loads(answer) == [2, f"coa: {module} is not installed, and `coa {name}` needs it\n"]
