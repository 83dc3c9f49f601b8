"""Tokens that samples share are computed once, and nothing else changes: in float64, losses and gradients are those of
samples that are computed one by one, for every algorithm."""

import copy
from pathlib import Path
from types import MethodType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3Config

import actors.learner.policy
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.learner import Learner
from actors.learner.policy import Outputs, TrainedPolicy, to_tensors
from actors.learner.scoring import bounds_of, targets_of
from coa.learning.algorithms import ALGORITHMS, loss_of, make, reduced
from coa.learning.algorithms.base import own_totals, standard_totals, token_batch
from coa.learning.packing import MicroBatch, PackingConfig, micro_batch, pack
from coa.types import ENVIRONMENT, Sample
from tests.support.tiny import make_model

VOCABULARY, VERSION = 40, 7
CPU = torch.device("cpu")
ROWS = {"masked": 512, "branched": 0}
Gradients = dict[str, Tensor]


@pytest.fixture(scope="module")
def model() -> Any:
    """In float64 throughout: its own norms would round to float32."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        tie_word_embeddings=False,
    )
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").double()
    for module in model.modules():
        if type(module).__name__ == "Qwen3RMSNorm":
            module.forward = MethodType(normed, module)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def normed(self: Any, hidden: Tensor) -> Tensor:
    return self.weight * hidden * (hidden.square().mean(-1, keepdim=True) + self.variance_epsilon).rsqrt()


def random_trees(seed: int) -> list[Sample]:
    """Groups of samples that part at random places, some of them more than once, some equal to or the beginning of
    another; what is trained, its advantage and its version are each sample's own, of shared tokens too."""
    rng = np.random.default_rng(seed)
    found: list[Sample] = []
    for group in range(4):
        trunk = rng.integers(0, VOCABULARY, rng.integers(2, 30))
        members = [trunk]
        for _ in range(5):
            start = members[rng.integers(len(members))]
            kept = start[: rng.integers(1, len(start) + 1)]
            members.append(np.concatenate([kept, rng.integers(0, VOCABULARY, rng.integers(0, 12))]))
        found += [sample_of(rng, token_ids, group) for token_ids in members if len(token_ids) > 1]
    return [found[i] for i in rng.permutation(len(found))]


def sample_of(rng: np.random.Generator, token_ids: Any, group: int) -> Sample:
    trained = rng.random(len(token_ids)) < 0.6
    sampled = trained & (rng.random(len(token_ids)) < 0.8)
    return Sample(
        token_ids=token_ids.astype(np.int32),
        loss_mask=trained,
        imitate=np.where(trained & ~sampled, 0.5, 0).astype(np.float32),
        reinforce=np.where(sampled, rng.normal(), 0).astype(np.float32),
        rollout_logprobs=np.where(sampled, -rng.random(len(token_ids)) * 5, 0).astype(np.float32),
        versions=np.where(sampled, VERSION - rng.integers(0, 3, len(token_ids)), ENVIRONMENT).astype(np.int32),
        group=group,
    )


def trained(policy: TrainedPolicy, samples: list[Sample], batches: list[MicroBatch], name: str) -> tuple[float, Any]:
    """Loss and gradients of a step, in which the reference is a policy of a higher temperature."""
    algorithm = make(name)
    policy.zero_grad()
    outputs: list[Outputs] = [policy(**to_tensors(batch, CPU)) for batch in batches]
    with torch.no_grad():
        reference = [policy(**to_tensors(batch, CPU), temperature=1.3).logprobs for batch in batches]
    targets = [
        targets_of(
            batch,
            CPU,
            version=VERSION,
            reference_logprobs=logprobs,
            old_values=0.5 * found.values.detach(),
            bounds=bounds_of(samples),
        )
        for batch, logprobs, found in zip(batches, reference, outputs, strict=True)
    ]
    totals: dict[str, float] = {}
    for one in targets:
        for total, value in {**standard_totals(one), **own_totals(algorithm, one)}.items():
            totals[total] = totals.get(total, 0.0) + value
    loss: Any = 0.0
    for one, found in zip(targets, outputs, strict=True):
        proximal = found.logprobs.detach() - 0.1
        tokens = token_batch(one, logprobs=found.logprobs, proximal_logprobs=proximal, values=found.values)
        loss = loss + reduced(loss_of(algorithm, tokens, totals).terms, totals)
    loss.backward()
    return loss.item(), {key: p.grad.clone() for key, p in policy.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("masked_tokens", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_loss_and_gradients_are_those_of_samples_that_share_nothing(
    name: str, masked_tokens: int, model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        samples = random_trees(seed)
        policy = TrainedPolicy(copy.deepcopy(model), temperature=0.8, values=make(name).needs.values)
        if policy.value_head is not None:
            torch.nn.init.normal_(policy.value_head.weight, std=0.3)
        monkeypatch.setattr(actors.learner.policy, "MASKED_TOKENS", 512)
        expected, theirs = trained(policy, samples, [micro_batch([[one]]) for one in samples], name)
        monkeypatch.setattr(actors.learner.policy, "MASKED_TOKENS", masked_tokens)
        batches = pack(samples, PackingConfig(row_tokens=64, rows=2))
        found, gradients = trained(policy, samples, batches, name)
        assert sum(batch.tokens for batch in batches) < 0.8 * sum(map(len, samples)), "much is shared"
        assert abs(found - expected) < 1e-10
        assert gradients.keys() == theirs.keys()
        for key, gradient in gradients.items():
            assert (gradient - theirs[key]).abs().max() < 1e-10, key
        assert max(float(one.abs().max()) for one in theirs.values()) > 1e-3


def test_entropies_and_values_of_shared_tokens_are_each_samples(model: Any) -> None:
    policy = TrainedPolicy(copy.deepcopy(model), values=True)
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.weight, std=0.3)
    samples = random_trees(9)
    with torch.no_grad():
        alone: list[Outputs] = [policy(**to_tensors(micro_batch([[one]]), CPU), entropy=True) for one in samples]
        for batch in pack(samples, PackingConfig(row_tokens=64)):
            found: Outputs = policy(**to_tensors(batch, CPU), entropy=True)
            for name in Outputs._fields:
                expected = torch.cat([getattr(alone[member], name) for member in batch.members])
                assert (getattr(found, name) - expected).abs().max() < 1e-10


def test_a_step_says_how_many_tokens_it_did_not_compute(one_rank: None, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    trunk = rng.integers(0, 300, 20)
    samples = [sample_of(rng, np.concatenate([trunk, rng.integers(0, 300, 5)]), 0) for _ in range(4)]
    start = make_model(tmp_path)
    for share, expected in ((True, 60 / 100), (False, 0.0)):
        config = LearnerConfig(packing=PackingConfig(row_tokens=96, share_prefixes=share), threads=1)
        report = Learner(start, ModelConfig(), config, steps=10, objective=Objective()).step(samples, VERSION)
        assert report.shared_fraction == pytest.approx(expected)
