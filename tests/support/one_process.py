"""What ranks are held against: one process that learns by plain autograd, from a model with a real vocabulary."""

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

from actors.learner.config import ModelConfig, Objective, RlLearnerConfig
from actors.learner.learner import added
from actors.learner.lora import add_adapters
from actors.learner.model.load import load_model
from actors.learner.policy import TrainedPolicy, to_tensors
from actors.learner.scoring import targets_of
from coa.learning.algorithms import loss_of, make, reduced
from coa.learning.algorithms.base import standard_totals, token_batch
from coa.learning.packing import micro_batch
from coa.types import ENVIRONMENT, NO_GROUP, Sample
from tests.support.ranks import Case, Outcome, distance

VOCABULARY = 152_000


def make_model(folder: Path, **settings: Any) -> Path:
    """Hidden size 16; weights large enough that log-probs are far apart."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "initializer_range": 0.2,
        "tie_word_embeddings": False,
    }
    AutoModelForCausalLM.from_config(Qwen3Config(**{**sizes, **settings})).save_pretrained(folder)
    return folder


def samples_of(tokens: int, *, groups: Sequence[int], seed: int, vocabulary: int = VOCABULARY) -> tuple[Sample, ...]:
    """So many trained tokens, in a sample for each group; what has no group is imitated. Each begins as the one before
    it. At sampling each token was a little likelier than one of a vocabulary of equally likely ones."""
    rng = np.random.default_rng(seed)
    rollout = 0.4 - log(vocabulary)
    made: list[Sample] = []
    for group, trained in zip(groups, np.diff(np.linspace(0, tokens, len(groups) + 1).astype(int)), strict=True):
        length = int(trained) + 9
        loss_mask = np.arange(length) >= 9
        imitated = group == NO_GROUP
        zeros, ones = np.zeros(length, np.float32), loss_mask.astype(np.float32)
        token_ids = rng.integers(0, vocabulary, length).astype(np.int32)
        if made:
            shared = int(rng.integers(5, max(6, min(length, len(made[-1])) // 2)))
            token_ids[:shared] = made[-1].token_ids[:shared]
        made.append(
            Sample(
                token_ids=token_ids,
                loss_mask=loss_mask,
                imitate=ones if imitated else zeros,
                reinforce=zeros if imitated else ones * np.float32(rng.normal()),
                rollout_logprobs=np.where(loss_mask, np.float32(rollout), np.float32(0)),
                versions=np.full(length, ENVIRONMENT if imitated else 0, np.int32),
                group=group,
            )
        )
    return tuple(made)


def alone(
    model: Path, config: RlLearnerConfig, objective: Objective, samples: Sequence[Sample]
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
    whole = added([algorithm.totals(one) for one in targets])
    found: list[tuple[float, dict[str, Tensor]]] = []
    for update in range(config.updates_per_batch):
        share = [i for i, sample in enumerate(samples) if max(sample.group, 0) % config.updates_per_batch == update]
        totals = {**added([standard_totals(targets[i]) for i in share]), **whole}
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
    """That ranks learnt what one process does, to 1e-5, and nothing at all where it learns nothing. What ranks share is
    there once."""
    samples = [sample for share in case.shares[:: case.config.sequence_parallel] for sample in share]
    expected = alone(case.model, RlLearnerConfig.of(case.config), case.objective, samples)
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
