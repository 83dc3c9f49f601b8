"""A short form of `coa chaos`, for real: four kills, and the accounts balance."""

import json
import subprocess
import sys
from typing import Any

import pytest

pytestmark = pytest.mark.slow

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
KINDS = ("core", "buffer", "rank", "driver")


def coa(*words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "jobs.cli", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=1500)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("chaos")
    made = coa("train", "--recipe", "tiny", f"run_dir={folder / 'run'}", "rl.steps=1", *SETTINGS)
    assert made.returncode == 0, made.stderr
    words = ("--from-run", str(folder / "run"), "--out", str(folder / "chaos"), "--kills", str(len(KINDS)))
    kinds = [word for kind in KINDS for word in ("--kind", kind)]
    done = coa("chaos", "--recipe", "tiny", *words, *kinds, "--steps", "40", "--minutes", "20", *SETTINGS)
    print(done.stdout, done.stderr)
    return json.loads((folder / "chaos" / "result.json").read_text())


def test_a_run_recovers_from_each_kill_and_its_accounts_balance(found: dict[str, Any]) -> None:
    assert found["by_kind"] == dict.fromkeys(KINDS, 1)
    assert (found["unfinished"], found["faults"]) == (0, [])
    assert (found["alarms"], found["failed_checks"]) == (0, 0)
    assert found["staleness_max"] <= 2


def test_a_new_driver_is_needed_only_where_the_driver_was_killed(found: dict[str, Any]) -> None:
    assert found["restarts"].keys() <= {"driver", "buffer"}
    assert found["restarts"]["driver"] == 1
