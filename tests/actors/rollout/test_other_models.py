"""Engines of models that have what our own has not: biases, or an output layer tied to the embeddings. What they say of
tokens is what transformers says, before and after an update."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.learner.config import ModelConfig
from actors.learner.model.load import load_model
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig
from actors.weights.checks.path_check import probe_tokens
from actors.weights.manifest import serialise
from tests.support.tiny import make_model

pytestmark = pytest.mark.slow
LIMITS = {"float32": (1e-4, 2e-5), "bfloat16": (0.1, 0.02)}
"""Largest difference of a log-prob, and of their mean, by the number type of both."""


def make_qwen2(folder: Path, dtype: str, *, tied: bool) -> Path:
    """Of random weights, biases of queries, keys and values among them."""
    from transformers import AutoConfig, Qwen2Config, Qwen2ForCausalLM

    make_model(folder)  # for its tokenizer, and for what an agent's model has in its folder
    vocabulary = AutoConfig.from_pretrained(folder).vocab_size
    torch.manual_seed(1)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=vocabulary,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            max_position_embeddings=512,
            initializer_range=0.1,
            tie_word_embeddings=tied,
            bos_token_id=None,
            eos_token_id=0,
        )
    )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.normal_(std=0.5)
    model.to(getattr(torch, dtype)).save_pretrained(folder)
    return folder


class Bench:
    def __init__(self, folder: Path, dtype: str) -> None:
        self.folder, self.dtype, self.runner = folder, dtype, asyncio.Runner()
        self.adapter: PolicyAdapter = self.run(self._start())
        self.tokens = probe_tokens(100, 64)

    async def _start(self) -> PolicyAdapter:
        config = EngineConfig(dtype=self.dtype, max_concurrent=8, kv_cache_gib=0.25)
        adapter = PolicyAdapter(str(self.folder), config, max_tokens=128, tag_tokens=frozenset())
        await adapter.name_version(0)
        return adapter

    def run(self, work: Any) -> Any:
        return self.runner.get_loop().run_until_complete(work)

    def expected(self, model: Any) -> np.ndarray:
        ids = torch.from_numpy(self.tokens).long()
        with torch.no_grad():
            found = model(input_ids=ids[None]).logits[0, :-1].float().log_softmax(-1)
        return found.gather(-1, ids[1:, None])[:, 0].numpy()

    def agrees(self, model: Any) -> None:
        far = np.abs(self.run(self.adapter.logprobs(self.tokens)) - self.expected(model))
        largest, mean = LIMITS[self.dtype]
        assert far.max() < largest
        assert far.mean() < mean


@pytest.fixture(params=[("float32", False), ("bfloat16", False), ("float32", True)], ids=["biases", "bf16", "tied"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    dtype, tied = request.param
    bench = Bench(make_qwen2(tmp_path / "model", dtype, tied=tied), dtype)
    yield bench
    bench.adapter.shutdown()
    bench.runner.close()


def test_log_probs_are_those_of_transformers_before_and_after_an_update(bench: Bench) -> None:
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(bench.folder, dtype=getattr(torch, bench.dtype))
    bench.agrees(model)
    learner = load_model(bench.folder, ModelConfig(dtype=bench.dtype))
    with torch.no_grad():
        for name, parameter in learner.named_parameters():
            if name.endswith("bias"):
                parameter.add_(0.25)
            if name == "model.embed_tokens.weight":
                parameter.mul_(1.25)
    weights = serialise({name: parameter.detach() for name, parameter in learner.named_parameters()})
    before = bench.expected(model)
    bench.run(bench.adapter.load(1, weights))
    bench.agrees(learner)
    assert np.abs(bench.expected(learner) - before).max() > LIMITS[bench.dtype][0]
