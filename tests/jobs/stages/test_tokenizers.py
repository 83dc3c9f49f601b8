"""Tokenizers of four kinds of published models through the whole product, with the grammar enforced and without: what
is taught is what is said, learnt from, and served."""

import re
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from coa.agent.grammar import parse
from coa.reporting.metrics import read_metrics
from tests.jobs.test_serve import SMALL, serving
from tests.support.patience import PATIENCE_S
from tests.support.tokenizer_models import MODELS, make_model_like

pytestmark = pytest.mark.slow

RECIPE = Path(__file__).parents[2] / "support" / "smollm.yaml"
STEPS = 3
SETTINGS = (
    "agent.limits={max_turn_tokens: 200, max_observation_tokens: 100, max_tokens: 768}",
    "distill={runs: 600, keep: 300}",
    "sft={steps: 100, batch: 16}",
    "sft.learner.optimizer.lr=3.0e-3",
    f"rl.steps={STEPS}",
    # So small a model gets every sum wrong: what differs between the episodes of a task is the lengths.
    "rl.reward.overlong_buffer=1.0",
    "rl.algorithm_settings.spread=reward",
    *(
        f"{stage}.learner.{setting}"
        for stage in ("sft", "rl")
        for setting in ("ranks=1", "zero_stage=1", "gradient_checkpointing=false", "packing.row_tokens=2048")
    ),
    "placement.engines=1",
    "engine.probe_tolerance=1.0e-3",
    "evaluation.tasks=12",
    "wandb.mode=disabled",
)
PLAYED = ("evaluation-sft", *(f"rl-{step:05}" for step in range(1, STEPS + 1)), "evaluation-rl")
MOST = 0.75
"""Share of the episodes; a model that samples freely leaves its format in some."""
QUESTION = "A shop gets 67 boxes of 8 cups and sells 28 . How many cups remain ?"


@dataclass(frozen=True, slots=True)
class Begun:
    """A kind's run with the grammar enforced, which did all stages."""

    name: str
    run: Path


def coa(*words: str) -> None:
    command = [sys.executable, "-m", "jobs.cli", *words, "--recipe", str(RECIPE), *SETTINGS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


@pytest.fixture(scope="module", params=MODELS)
def enforced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Begun:
    folder = tmp_path_factory.mktemp("tokenizers")
    start, run = make_model_like(request.param, folder / "start"), folder / "enforced"
    coa("train", f"model.path={start}", f"run_dir={run}", "agent.grammar=enforce")
    return Begun(request.param, run)


def episodes(run: Path) -> list[dict[str, Any]]:
    return [one for name in PLAYED for one in pq.read_table(run / "trajectories" / f"{name}.parquet").to_pylist()]


def right(played: Sequence[dict[str, Any]]) -> int:
    """How many ended with an answer and needed no repair."""
    return sum(one["well_formed"] and not one["repairs"] and one["status"] == "answered" for one in played)


def tell(name: str, played: Sequence[dict[str, Any]]) -> None:
    kinds = Counter((one["status"], one["well_formed"], len(one["tool_calls"])) for one in played)
    print(f"{name}: {right(played)} of {len(played)} episodes are well-formed; {dict(kinds)}")


def check_steps(run: Path) -> None:
    """Every step changed the weights, and engines gave with them the log-probs that learners give."""
    records = [record for record in read_metrics(run / "metrics.jsonl") if record["stage"] == "rl"]
    assert [record["step"] for record in records] == list(range(1, STEPS + 1))
    assert all(record["tokens"] > 0 and record["grad_norm"] > 0 for record in records)
    assert len({record["weights"] for record in records}) == STEPS
    assert [record["sync_alarms"] for record in records] == [0] * STEPS


def check_served(model: Path) -> None:
    """The agent answers a question with a number, at the end of a chain without a fault."""
    with serving(model, "served", settings=SMALL) as (url, _):
        question = {"role": "user", "content": QUESTION}
        asked = {"model": model.parent.name, "messages": [question], "temperature": 0}
        reply = httpx.post(f"{url}/v1/chat/completions", json=asked, timeout=PATIENCE_S)
    assert reply.status_code == 200, reply.text
    [choice] = reply.json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(r"-?\d+", choice["message"]["content"])
    chain = parse(choice["message"]["reasoning"])
    assert chain.fault is None
    assert chain.chain[0].tag == "plan"


def test_with_the_grammar_enforced_every_episode_is_well_formed(enforced: Begun) -> None:
    played = episodes(enforced.run)
    tell(enforced.name, played)
    assert right(played) == len(played)
    assert any(one["tool_calls"] for one in played), "results of tools are read, too"
    check_steps(enforced.run)
    check_served(enforced.run / "model")


def test_what_is_learnt_is_said_without_a_grammar(enforced: Begun) -> None:
    run, tuned = enforced.run.parent / "lenient", enforced.run / "checkpoints" / "sft-model"
    coa("train", f"model.path={tuned}", f"run_dir={run}", "agent.grammar=lenient", "sft.steps=0")
    played = episodes(run)
    tell(enforced.name, played)
    assert right(played) >= MOST * len(played)
    check_steps(run)
    check_served(run / "model")
