"""Kinds of tokenizers through the whole product, each with a small real model and engine: distillation, fine-tuning,
reinforcement with the grammar enforced and without, and serving."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from coa.reporting.metrics import read_metrics
from tests.jobs.test_serve import SMALL, serving
from tests.support.patience import PATIENCE_S
from tests.support.tokenizer_kinds import KINDS, LAYOUTS, write

pytestmark = pytest.mark.slow
RECIPE = Path(__file__).parents[2] / "support" / "smollm.yaml"
MODELS = {
    "Llama 2": ("prepend", "instruction", "</s>"),
    "Mistral": ("metaspace first", "instruction, tight", "</s>"),
    "Phi-3": ("prepend, swallowing", "marks alone", "<|end|>"),
    "Gemma": ("replace", "chat marks", "<|im_end|>"),
}
"""By model: the kind of its tokenizer, the layout of its chat template, and the token that ends a turn."""
SETTINGS = (
    "agent.limits={max_turn_tokens: 200, max_observation_tokens: 100, max_tokens: 1024}",
    "rl.algorithm=reinforce_pp",
    "rl.reward={formula: overlong, overlong_buffer: 1.0}",  # a shorter episode is a better one: tasks are too hard
    *(
        f"{stage}.learner.{setting}"
        for stage in ("sft", "rl")
        for setting in ("ranks=1", "zero_stage=1", "gradient_checkpointing=false", "packing.row_tokens=2048")
    ),
    "distill={runs: 600, keep: 200}",
    "sft={steps: 160, batch: 16}",
    "sft.learner.optimizer.lr=3.0e-3",
    "placement.engines=1",
    "evaluation.tasks=12",
    "engine.probe_tolerance=1.0e-3",
    "wandb.mode=disabled",
)
STEPS = 3
MOST = 0.75
"""Least share of episodes that a tuned model that is free to say anything writes as it has learnt to."""


def make(name: str, folder: Path) -> None:
    kind, layout, end = MODELS[name]
    tokenizer = KINDS[kind]()
    write(tokenizer, folder, LAYOUTS[layout])
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(end),
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)


def coa(command: str, *settings: str) -> None:
    words = [sys.executable, "-m", "jobs.cli", command, "--recipe", str(RECIPE), *SETTINGS, *settings]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=4 * PATIENCE_S)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def episodes(run: Path, *names: str) -> list[dict[str, Any]]:
    return [one for name in names for one in pq.read_table(run / "trajectories" / f"{name}.parquet").to_pylist()]


def check_steps(run: Path) -> None:
    """Each step learnt something, and the engine says with its weights what learners say."""
    steps = [record for record in read_metrics(run / "metrics.jsonl") if record["stage"] == "rl"]
    assert [record["step"] for record in steps] == list(range(1, STEPS + 1))
    assert all(record["grad_norm"] > 0 for record in steps)
    assert sum(record["sync_alarms"] for record in steps) == 0


@pytest.mark.parametrize("name", MODELS)
def test_what_is_taught_is_what_is_said_trained_and_served(name: str, tmp_path: Path) -> None:
    make(name, tmp_path / "start")
    enforced, free = tmp_path / "enforced", tmp_path / "free"
    rl = [f"rl-{step:05}" for step in range(1, STEPS + 1)]
    coa("train", f"model.path={tmp_path / 'start'}", f"run_dir={enforced}", "agent.grammar=enforce")
    check_steps(enforced)
    played = episodes(enforced, "evaluation-sft", *rl, "evaluation-rl")
    assert all(one["well_formed"] and not one["repairs"] and one["status"] == "answered" for one in played)

    tuned = enforced / "checkpoints" / "sft-model"
    coa("rl", f"model.path={tuned}", f"run_dir={free}", "agent.grammar=lenient", "sft.steps=0")
    check_steps(free)
    played = episodes(free, *rl)
    right = sum(one["well_formed"] and not one["repairs"] for one in played)
    print(f"{name}: {right} of {len(played)} free episodes are well-formed")
    assert right > MOST * len(played)

    for model in (enforced / "model", free / "model"):
        with serving(model, f"{model.parent.name}-served", settings=SMALL) as (url, _):
            asked = [{"role": "user", "content": "What is 3 * 4 ?"}]
            reply = httpx.post(f"{url}/v1/chat/completions", json={"messages": asked, "seed": 3}, timeout=PATIENCE_S)
        assert reply.status_code == 200, reply.text
        [choice] = reply.json()["choices"]
        assert choice["finish_reason"] == "stop"
        assert choice["message"]["content"].strip()
