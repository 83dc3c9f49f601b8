"""Ranks of unequal work learn what one process does: plain processes over gloo, with a real vocabulary."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from actors.learner.config import LearnerConfig, LoraConfig, ModelConfig, Objective, ValueHeadConfig
from actors.learner.learner import added
from actors.learner.lora import add_adapters
from actors.learner.policy import TrainedPolicy, load_model, to_tensors
from actors.learner.scoring import targets_of
from coa.learning.algorithms import loss_of, make, reduced
from coa.learning.algorithms.base import standard_totals, token_batch
from coa.learning.packing import PackingConfig, micro_batch
from coa.learning.schedule import OptimizerConfig
from coa.types import ENVIRONMENT, NO_GROUP, Sample
from tests.support.ranks import Case, Outcome, distance, on_ranks

VOCABULARY = 152_000
LORA = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "up_proj"))
CONFIG = LearnerConfig(
    optimizer=OptimizerConfig(lr=1e-3, clip_norm=1e9),
    value_head=ValueHeadConfig(lr=1e-3),
    packing=PackingConfig(row_tokens=4096, rows=1),
    threads=1,
)


def make_model(folder: Path, **settings: Any) -> Path:
    """Hidden size 16; weights large enough that log-probs are far apart."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        initializer_range=0.2,
        **{"tie_word_embeddings": False, **settings},
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return folder


def samples_of(tokens: int, *, groups: Sequence[int], seed: int) -> tuple[Sample, ...]:
    """So many trained tokens, in a sample for each group; what has no group is imitated."""
    rng = np.random.default_rng(seed)
    made: list[Sample] = []
    for group, trained in zip(groups, np.diff(np.linspace(0, tokens, len(groups) + 1).astype(int)), strict=True):
        length = int(trained) + 9
        loss_mask = np.arange(length) >= 9
        imitated = group == NO_GROUP
        zeros, ones = np.zeros(length, np.float32), loss_mask.astype(np.float32)
        made.append(
            Sample(
                token_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
                loss_mask=loss_mask,
                imitate=ones if imitated else zeros,
                reinforce=zeros if imitated else ones * np.float32(rng.normal()),
                rollout_logprobs=np.where(loss_mask, np.float32(-11.5), np.float32(0)),
                versions=np.full(length, ENVIRONMENT if imitated else 0, np.int32),
                group=group,
            )
        )
    return tuple(made)


def alone(
    model: Path, config: LearnerConfig, objective: Objective, samples: Sequence[Sample]
) -> list[tuple[float, dict[str, Tensor]]]:
    """Loss, for each token, and gradients of each update by plain autograd, without DeepSpeed: one sample at a time,
    all logits at once. Groups are numbered by their updates."""
    algorithm = make(objective.algorithm, config.loss, objective.settings)

    def build() -> TrainedPolicy:
        hf_model = load_model(model, ModelConfig())
        if config.lora.rank:
            add_adapters(hf_model, config.lora)
        return TrainedPolicy(
            hf_model,
            logits_bytes=1 << 40,
            temperature=objective.temperature,
            values=algorithm.needs.values,
        )

    policy, reference = build(), build()
    trained = {name: p for name, p in policy.named_parameters() if p.requires_grad}
    optimizer = torch.optim.AdamW(
        trained.values(),
        lr=config.optimizer.lr,
        betas=(config.optimizer.beta1, config.optimizer.beta2),
        weight_decay=0.0,
    )
    rows = [micro_batch([[sample]]) for sample in samples]
    inputs = [to_tensors(row, torch.device("cpu")) for row in rows]
    with torch.no_grad():
        before = [policy(**one) for one in inputs]
        old = [reference(**one).logprobs for one in inputs]
    targets = [
        targets_of(row, torch.device("cpu"), version=0, reference_logprobs=then, old_values=its.values)
        for row, its, then in zip(rows, before, old, strict=True)
    ]
    found: list[tuple[float, dict[str, Tensor]]] = []
    for update in range(config.updates_per_batch):
        share = [i for i, sample in enumerate(samples) if max(sample.group, 0) % config.updates_per_batch == update]
        totals = added([{**standard_totals(targets[i]), **algorithm.totals(targets[i])} for i in share])
        loss = 0.0
        for i in share:
            outputs = policy(**inputs[i])
            batch = token_batch(
                targets[i], logprobs=outputs.logprobs, proximal_logprobs=before[i].logprobs, values=outputs.values
            )
            part = reduced(loss_of(algorithm, batch, totals).terms, totals)
            part.backward()
            loss += part.item()
        names = {name: name.removeprefix("model.") for name in trained}
        gradients = {names[name]: p.grad.clone() for name, p in trained.items() if p.grad is not None}
        found.append((loss, gradients))
        optimizer.step()
        optimizer.zero_grad()
    return found


def check(name: str, case: Case, found: Outcome) -> None:
    samples = [sample for share in case.shares for sample in share]
    expected = alone(case.model, case.config, case.objective, samples)
    tokens = [0] * len(expected)
    for sample in samples:
        tokens[max(sample.group, 0) % len(expected)] += int(sample.loss_mask.sum())
    loss = sum(its[0] * count for its, count in zip(expected, tokens, strict=True)) / sum(tokens)
    [report] = found.reports
    assert report.loss == pytest.approx(loss, rel=1e-5), name
    assert report.tokens == sum(tokens), name
    assert len(found.gradients) == len(expected), name
    for gradients, (_, theirs) in zip(found.gradients, expected, strict=True):
        assert distance(gradients, theirs) <= 1e-5, name


BIG = {"lora": LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "lm_head"))}
ALL: dict[str, Any] = {"lora": LORA, "gradient_checkpointing": True, "updates_per_batch": 4}
PPO = Objective(algorithm="ppo", settings={"gae_lambda": 0.9})
KL = Objective(settings={"kl_weight": 0.5}, temperature=0.7)
SMALL: dict[str, tuple[dict[str, Any], Objective]] = {
    "stage 1": ({"zero_stage": 1}, Objective()),
    "stage 2, 4 updates": ({"zero_stage": 2, "updates_per_batch": 4}, Objective()),
    "stage 3, adapters, checkpointing, 4 updates": ({"zero_stage": 3, **ALL}, Objective()),
    "stage 3, values": ({"zero_stage": 3, "updates_per_batch": 4}, PPO),
    "stage 3, reference, temperature": ({"zero_stage": 3, "updates_per_batch": 4}, KL),
}
GSPO = Objective(algorithm="gspo", settings={"clip_low": 0.2, "clip_high": 0.2})


def whole(stage: int) -> dict[str, tuple[dict[str, Any], Objective]]:
    """Everything that may be set beside a stage."""
    return {
        f"stage {stage}, {name}": ({"zero_stage": stage, **settings}, objective)
        for name, settings, objective in (
            ("plain", {}, Objective()),
            ("4 updates", {"updates_per_batch": 4}, Objective()),
            ("adapters", {"lora": LORA}, Objective()),
            ("adapters on the output", BIG, Objective()),
            ("checkpointing", {"gradient_checkpointing": True}, Objective()),
            ("all of it", ALL, Objective()),
            ("gspo", {"updates_per_batch": 4}, GSPO),
            ("values", ALL, PPO),
            ("reference, temperature", ALL, KL),
        )
    }


GROUPS = (0, 1, 2, 3, 0, NO_GROUP), (1, 3)
"""Of two ranks: some groups are on both."""


@pytest.mark.parametrize(
    ("tokens", "chunk", "matrix"),
    [
        pytest.param((201, 38), 50, SMALL, id="small"),
        *(
            pytest.param((1997, 385), 400, whole(stage), id=f"whole, stage {stage}", marks=pytest.mark.slow)
            for stage in (1, 2, 3)
        ),
    ],
)
def test_ranks_of_unequal_work_have_the_gradients_of_one_process(
    tokens: tuple[int, int], chunk: int, matrix: dict[str, tuple[dict[str, Any], Objective]], tmp_path: Path
) -> None:
    """`chunk`: positions whose logits are there at a time, so that the ranks have different numbers of chunks."""
    pytest.importorskip("peft")
    model = make_model(tmp_path / "model")
    shares = tuple(
        samples_of(count, groups=groups, seed=seed)
        for seed, (count, groups) in enumerate(zip(tokens, GROUPS, strict=True))
    )
    config = replace(CONFIG, ranks=2, logits_bytes=4 * VOCABULARY * chunk)
    cases = {
        name: Case(model=model, config=replace(config, **settings), objective=objective, shares=shares)
        for name, (settings, objective) in matrix.items()
    }
    found = on_ranks(tmp_path, cases)
    for name, case in cases.items():
        check(name, case, found[name])
