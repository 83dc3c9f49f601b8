"""Two learners that shard the model, and two engines, train the tiny recipe to the reward that one of each reaches."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from coa.learning.batches import BatchStore
from coa.reporting.metrics import Record, read_metrics

pytestmark = pytest.mark.slow
LIMIT_S = 1800
STEPS = 24
SETTINGS = (
    # One family of tasks needs a third of the fine-tuning.
    "world.families=[mhqa]",
    "distill.runs=16000",
    "distill.keep=10000",
    "sft.steps=250",
    f"rl.steps={STEPS}",
    "evaluation.tasks=150",
    "evaluation.samples=4",
    "session.cpus=4",
)
TWO = ("placement.engines=2", "rl.learner.ranks=2", "rl.learner.zero_stage=3")
GAIN = 0.2
"""Between the end of the interval at the start and the beginning of that at the end."""


def coa(stage: str, folder: Path, *settings: str) -> None:
    words = ["--recipe", "tiny", f"run_dir={folder}", *SETTINGS, *settings]
    command = [sys.executable, "-m", "jobs.cli", stage, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def trained(start: Path, folder: Path, *settings: str) -> tuple[dict[str, Any], list[Record], set[int]]:
    """The report of a run that goes on from where `start` is fine-tuned, the records of its steps, and in how many
    shares its batches were dealt."""
    shutil.copytree(start, folder, ignore=shutil.ignore_patterns("config.yaml", "logs"))
    coa("train", folder, *settings)
    report = json.loads((folder / "report.json").read_text())
    records = [one for one in read_metrics(folder / "metrics.jsonl") if one["stage"] == "rl" and "loss" in one]
    store = BatchStore(folder / "batches")
    return report, records, {sum(map(bool, store.read(step))) for step in store.steps()}


def interval(report: dict[str, Any], stage: str) -> tuple[float, float]:
    """Of the share of held-out tasks that an attempt at temperature 1 gets right, at 95 %."""
    found = report["evaluation"][stage]["pass_at_1"]
    low, high = found["ci95"]
    print(f"{stage}: {found['mean']:.3f} [{low:.3f}, {high:.3f}] of {found['n']}")
    return low, high


def test_two_learners_and_two_engines_reach_the_reward_of_one_and_one(tmp_path: Path) -> None:
    start = tmp_path / "start"
    for stage in ("distill", "sft"):
        coa(stage, start)
    one, alone, whole = trained(start, tmp_path / "one")
    two, shared, halves = trained(start, tmp_path / "two", *TWO)
    assert (whole, halves) == ({1}, {2})
    assert [{record["engines_serving"] for record in records} for records in (alone, shared)] == [{1}, {2}]
    assert len(alone) == len(shared) == STEPS
    for report in (one, two):
        assert report["rl"]["logprob_max_diff"] < 1e-4
        assert report["rl"]["faults"] == 0
        assert interval(report, "rl")[0] > interval(report, "sft")[1] + GAIN
    assert one["evaluation"]["tasks_sha256"] == two["evaluation"]["tasks_sha256"]
    (low, high), (other_low, other_high) = interval(one, "rl"), interval(two, "rl")
    assert low <= other_high
    assert other_low <= high
