"""A short form of `python -m benchmarks.chaos`, for real: one kill of each kind, and the accounts balance."""

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.chaos.plan import Kind
from tests.project.test_docs import ROOT

SETTINGS = (
    "distill.runs=120",
    "teaching.wave=60",
    "sft.steps=24",
    "sft.batch=8",
    "rl.group=2",
    "rl.window.groups_per_batch=4",
    "rl.window.max_refills=1",
    "rl.reward.overlong_buffer=1.0",
    # A policy of so few steps is wrong in most groups alike: what differs is the lengths.
    "rl.algorithm_settings.spread=reward",
    "evaluation.tasks=20",
    "wandb.mode=disabled",
)
LONGEST_S = 3600
pytestmark = [pytest.mark.slow, pytest.mark.timeout(LONGEST_S)]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Without a run to begin with: the recipe's is not there."""
    folder = tmp_path_factory.mktemp("chaos")
    words = ("--out", str(folder / "chaos"), "--kills", str(len(Kind)), "--steps", "60", "--pause", "1", "3")
    settings = (f"run_dir={folder / 'none'}", *SETTINGS)
    command = [sys.executable, "-m", "benchmarks.chaos", "--recipe", "tiny", *words, *settings]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=LONGEST_S)
    print(done.stdout, done.stderr)
    return json.loads((folder / "chaos" / "result.json").read_text())


def test_a_run_recovers_from_each_kill_and_its_accounts_balance(found: dict[str, Any]) -> None:
    assert found["by_kind"] == dict.fromkeys(Kind, 1)
    assert (found["unfinished"], found["faults"]) == (0, [])
    assert (found["alarms"], found["failed_checks"]) == (0, 0)
    assert found["staleness_max"] <= 2


def test_a_new_driver_is_needed_only_where_the_driver_was_killed(found: dict[str, Any]) -> None:
    assert found["restarts"] == {"driver": 1}
    assert found["unprovoked"] == 0
