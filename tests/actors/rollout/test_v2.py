"""The tests of engines and of their weights under vLLM's runner for GPUs and its asynchronous scheduler, which run on a
CPU by Triton's interpreter (`tests/support/v2`). `make test-v2` runs more of them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[3]
CHOSEN = {
    "tests/actors/rollout/test_engine.py": "alone_and_among_many or are_the_learners or has_the_learners_weights",
    "tests/actors/rollout/test_other_models.py": "biases",
}


@pytest.mark.parametrize("file", CHOSEN)
def test_under_the_runner_for_gpus(file: str) -> None:
    variables = {"PYTHONPATH": str(ROOT / "tests/support/v2"), "COA_V2": "1", "COA_ASYNC": "1"}
    words = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", file, "-k", CHOSEN[file]]
    done = subprocess.run(words, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "Using V2 Model Runner" in done.stdout + done.stderr
