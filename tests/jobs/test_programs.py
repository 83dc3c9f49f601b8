"""A run whose agent is a program: episodes through the gateway on real engines, trained by real learners."""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from coa.agent.codec import read_tokenizer
from coa.distill.dataset.tokens import read_tokens
from coa.learning.batches import BatchStore
from tests.project.test_docs import ROOT
from tests.support.endpoints import EndpointProcess, read_log
from tests.support.patience import soon
from tests.support.programs import chat_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
STEPS = 2
AT_ONCE = 4


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
    check_batches(tmp_path / "run/batches")


def check_batches(folder: Path) -> None:
    batches = BatchStore(folder)
    for step in range(1, STEPS + 1):
        samples = [sample for share in batches.read(step) for sample in share]
        assert samples
        for sample in samples:
            assert sample.loss_mask.any()
            assert np.isfinite(sample.rollout_logprobs[sample.loss_mask]).all()
            assert (sample.versions[sample.loss_mask] >= 0).all()


def test_a_language_model_teaches_a_program_first(tmp_path: Path) -> None:
    """The whole way with a teacher that is right about three of four questions; killed once while it is asked."""
    model = chat_model(tmp_path / "model")
    questions = [{"question": f"How many cups are {n} ?", "answer": str(n), "grader": "exact"} for n in range(40)]
    (tmp_path / "questions.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in questions))
    reply = ("--reply", "tests.support.counting_teacher:reply", "--log", str(tmp_path / "log"), "--latency", "0.2")
    with EndpointProcess(*reply) as teacher:
        command = [
            *(sys.executable, "-m", "jobs.cli", "distill", "--recipe", "own_tasks", f"run_dir={tmp_path / 'run'}"),
            *("tasks.path=questions.jsonl", "tasks.profile=direct", "tasks.held_out=0.2", f"model.path={model}"),
            *("agent.program.function=docs.examples.two_calls:run", f"agent.program.at_once={AT_ONCE}"),
            *("agent.limits.max_turn_tokens=24", "agent.limits.max_tokens=400", "team.model=teacher"),
            *(f"models.teacher.endpoint.url={teacher.url}", "models.teacher.endpoint.name=m", "distill.runs=40"),
            *("sft.steps=4", "sft.epochs=null", "sft.batch=4"),
        ]
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
        begun = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.DEVNULL)
        assert soon(lambda: len(read_log(tmp_path / "log")) > 20 or begun.poll() is not None)
        begun.kill()
        begun.wait()
        for stage in ("distill", "sft"):
            command[3] = stage
            ended = subprocess.run(command, cwd=tmp_path, env=environment, check=False, capture_output=True, text=True)
            assert ended.returncode == 0, (ended.stdout + ended.stderr)[-4000:]
    found = json.loads((tmp_path / "run/checkpoints/distill.json").read_text())
    assert (found["transcripts"], found["failed"]) == (40, 0)
    assert found["kept"] == 40 - found["dropped"]["wrong answer"]
    asked = Counter(seen.id for seen in read_log(tmp_path / "log"))
    assert asked.total() - len(asked) <= AT_ONCE, "what was under way when it was killed, and nothing else"
    tokenizer = read_tokenizer(model)
    for one in read_tokens(tmp_path / "run/data"):
        number = one.row.task.answers[0]
        assert tokenizer.decode(one.token_ids[one.policy_mask].tolist()) == f"{number}<|im_end|>"
    assert json.loads((tmp_path / "run/checkpoints/sft.json").read_text())["steps"] == 4
