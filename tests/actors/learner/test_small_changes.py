"""Whether what the first step of adapters changes arrives at the engines, in a model of bfloat16 weights."""

from pathlib import Path

import numpy as np
import pytest
import torch

from actors.learner.config import LearnerConfig, LoraConfig, ModelConfig
from actors.learner.learner import Learner
from actors.learner.lora import Source, sources
from actors.learner.model.load import load_model
from actors.learner.policy import PackedPolicy, to_tensors
from actors.weights.parts import ModelParts
from coa.learning.packing import micro_batch
from coa.learning.schedule import OptimizerConfig
from tests.support.tiny import make_model, random_sample

SIZES = {"hidden_size": 512, "intermediate_size": 1024, "layers": 2, "initializer_range": 0.03}
ONE_GPU = LearnerConfig(
    lora=LoraConfig(rank=32, alpha=64.0), optimizer=OptimizerConfig(lr=2e-5, warmup_steps=5), threads=1
)
"""Adapters and learning rate of the recipe `one_gpu`; of the rate the first step has a fifth."""
ARRIVES = 0.95


def published(found: list[Source]) -> dict[str, torch.Tensor]:
    parts = ModelParts(found, sharded=False, bucket_bytes=1 << 20)
    data = torch.cat([piece for _, piece in parts.tensors()])
    return {
        span.name: data[span.start : span.stop].view(torch.bfloat16).view(span.shape) for span in parts.layout.tensors
    }


def exact(found: list[Source]) -> dict[str, torch.Tensor]:
    """The weights that the learner computes with, in float32."""
    merged: dict[str, torch.Tensor] = {}
    for source in found:
        weight, *adapter = (parameter.detach().float() for parameter in source.parameters)
        merged[source.name] = weight + source.scale * (adapter[1] @ adapter[0]) if adapter else weight
    return merged


def test_the_first_step_of_adapters_changes_log_probs_of_engines_as_much_as_those_of_the_learner(
    one_rank: None, tmp_path: Path
) -> None:
    pytest.importorskip("peft")
    model = make_model(tmp_path / "model", **SIZES)
    samples = [random_sample(np.random.default_rng(seed), 60) for seed in range(8)]

    def logprobs(weights: dict[str, torch.Tensor]) -> np.ndarray:
        loaded = load_model(model, ModelConfig())
        with torch.no_grad():
            for name, parameter in loaded.named_parameters():
                parameter.copy_(weights[name].float())
            policy = PackedPolicy(loaded)
            rows = [policy(**to_tensors(micro_batch([[sample]]), torch.device("cpu"))) for sample in samples]
        return torch.cat(rows).double().numpy()

    learner = Learner(model, ModelConfig(dtype="bfloat16"), ONE_GPU, steps=150)
    before = logprobs(published(list(sources(learner.policy.model))))
    learner.step(samples, 0)
    found = list(sources(learner.policy.model))
    true = logprobs(exact(found)) - before
    rounded = logprobs({name: weight.bfloat16() for name, weight in exact(found).items()}) - before
    assert (logprobs(published(found)) - before) @ true >= ARRIVES * (true @ true)
    assert rounded @ true < 0.1 * (true @ true), "what is lost by rounding to the nearest"
