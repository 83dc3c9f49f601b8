"""docs/examples/loop.py learns the tiny task, from a model that was fine-tuned for some minutes."""

import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import pytest

from tests.project.test_docs import ROOT

pytestmark = pytest.mark.slow
SETTINGS = ("distill.runs=20000", "sft.steps=350", "wandb.mode=disabled")
LINE = re.compile(r"^ *(\d+)  reward (\S+)  samples +\d+  log-probs differ by (\S+)  paused", re.MULTILINE)
MEAN_OF = 4
"""Batches at the beginning, and at the end."""
GAIN = 0.1


def test_the_loop_of_one_process_raises_the_reward(tmp_path: Path) -> None:
    for command in ("distill", "sft"):
        words = ["-m", "jobs.cli", command, "--recipe", "tiny", f"run_dir={tmp_path}/run", *SETTINGS]
        subprocess.run([sys.executable, *words], cwd=ROOT, check=True)
    words = ["-m", "docs.examples.loop", str(tmp_path / "run" / "checkpoints" / "sft-model")]
    said = subprocess.run([sys.executable, *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    print(said)
    steps, rewards, apart = zip(*((int(n), float(r), float(d)) for n, r, d in LINE.findall(said)), strict=True)
    assert steps == tuple(range(1, len(steps) + 1))
    assert max(apart) < 1e-3
    assert fmean(rewards[-MEAN_OF:]) > fmean(rewards[:MEAN_OF]) + GAIN
