"""A run whose agent is a program: episodes through the gateway on real engines, trained by real learners."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coa.learning.batches import BatchStore
from tests.project.test_docs import ROOT
from tests.support.programs import chat_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS = 2


def test_a_program_is_trained_as_it_is(tmp_path: Path) -> None:
    """An untrained policy says nothing sensible; a grade by an answer's length has a spread nevertheless."""
    model = chat_model(tmp_path / "model")
    questions = [{"question": f"How many cups are {n} ?", "answer": str(n), "grader": "length"} for n in range(24)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in questions))
    command = [
        *(sys.executable, "-m", "jobs.cli", "train", "--recipe", "own_tasks", f"run_dir={tmp_path / 'run'}"),
        *("tasks.path=questions.jsonl", "tasks.profile=direct", f"model.path={model}", "sft.steps=0"),
        *("agent.program.function=docs.examples.two_calls:run", "agent.limits.max_turn_tokens=24"),
        *(f"rl.steps={STEPS}", "rl.group=4", "rl.window.groups_per_batch=2"),
        *("evaluation.tasks=4", "evaluation.base=false", "engine.probe_tolerance=0.001"),
    ]
    (tmp_path / "length.py").write_text(
        "from coa.grading.graders import register\n"
        "async def length(answer, task, use_tool):\n    return len(answer) % 10 / 10\n"
        "register('length', length)\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}", "COA_EXTENSIONS": "length"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    report = json.loads((tmp_path / "run/report.json").read_text())
    assert report["stages"]["rl"]["steps"] == STEPS
    batches = BatchStore(tmp_path / "run/batches")
    for step in range(1, STEPS + 1):
        samples = [sample for share in batches.read(step) for sample in share]
        assert samples
        for sample in samples:
            assert sample.loss_mask.any()
            assert np.isfinite(sample.rollout_logprobs[sample.loss_mask]).all()
            assert (sample.versions[sample.loss_mask] >= 0).all()
