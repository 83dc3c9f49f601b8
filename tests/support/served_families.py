"""Tiny random models of families that vLLM has too, and what three steps of RL with a real engine make of them.

    python -m tests.support.served_families FAMILY ...    says how near engine and learner are, for each

Sizes suit vLLM's kernels for CPUs: heads of 32 dimensions, experts in multiples of 32.
"""

import asyncio
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from actors.learner.config import ModelConfig, RlLearnerConfig
from actors.learner.learner import Learner
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig, SamplingConfig
from coa.agent.codec import Stops
from coa.agent.episode import Ask
from coa.learning.samples import all_trained
from coa.learning.schedule import OptimizerConfig
from coa.pretrained.fit import causal_class
from coa.types import Sample, Tokens
from tests.support.tiny import make_model

STEPS, TURN_TOKENS, LONGEST = 3, 60, 128
PROMPTS = (5, 30, 12, 44)
"""Tokens of the prompts of a group. With a turn, they are beyond the windows."""
SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": 0,
    "pad_token_id": 0,
}
WIDE: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
"""For families whose heads may be wider than the residual stream."""
WINDOWS: dict[str, Any] = {"sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
STATES: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_head": 32, "mamba_d_state": 16, "mamba_n_groups": 1}
TIED: dict[str, Any] = {"tie_word_embeddings": True}
FAMILIES: dict[str, dict[str, Any]] = {
    "cohere": {**WIDE, **TIED, "logit_scale": 0.7},
    # vLLM's window is a token longer than that of transformers.
    "cohere2": {**WIDE, **WINDOWS, **TIED, "logit_scale": 0.7, "sliding_window": 256},
    "exaone4": {**WIDE, **WINDOWS, "sliding_window_pattern": None},
    "falcon_h1": {**WIDE, **STATES, "mamba_d_ssm": 128, "lm_head_multiplier": 0.7},
    "gemma2": {
        **WIDE,
        **WINDOWS,
        **TIED,
        "query_pre_attn_scalar": 32,
        "final_logit_softcapping": 5.0,
        "attn_logit_softcapping": 2.0,
    },
    "gemma3_text": {**WIDE, **WINDOWS, "query_pre_attn_scalar": 32},
    "glm": WIDE,
    "glm4": WIDE,
    "glm4_moe": {
        **WIDE,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "n_group": 1,
        "topk_group": 1,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "gpt_oss": {
        **WIDE,
        **WINDOWS,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "granite": {"logits_scaling": 0.7, "embedding_multiplier": 2.0, "residual_multiplier": 0.5},
    "granitemoehybrid": {
        **STATES,
        "layer_types": ["mamba", "attention"],
        "num_local_experts": 0,
        "shared_intermediate_size": 128,
        "mamba_expand": 2,
    },
    "mistral": {**WIDE, "sliding_window": 16},
    "mixtral": {**WIDE, "num_local_experts": 4, "num_experts_per_tok": 2},
    "olmo2": {},
    "olmoe": {**EXPERTS, "intermediate_size": 64},
    "phi3": {},
    "qwen2": TIED,
    "qwen3_moe": {**WIDE, **EXPERTS, "decoder_sparse_step": 1, "mlp_only_layers": []},
    "starcoder2": {"sliding_window": 16},
}
"""Families, with what is special in them."""


@dataclass(frozen=True)
class Played:
    packed: bool
    """Whether samples are trained in packed rows."""
    apart: tuple[float, ...]
    """Nats between the log-probs of engine and learner: of what was said before each step, and of a text behind the
    last."""
    changed: float
    """Nats by which training changed that text's."""
    exported: float
    """Nats between an engine of the model that was written and the engine that was updated."""


def make_served(family: str, folder: Path) -> None:
    """A model whose weights, biases, norms and saved buffers all matter, with a tokenizer."""
    from transformers import AutoConfig

    make_model(folder)
    vocabulary = AutoConfig.from_pretrained(folder).vocab_size
    config = AutoConfig.for_model(family, vocab_size=vocabulary, **{**SIZES, **FAMILIES[family]})
    torch.manual_seed(0)
    model: Any = causal_class(config)._from_config(config, attn_implementation="eager")
    saved = model.state_dict()
    with torch.no_grad():
        for parameter in model.parameters():
            spread = torch.randn_like(parameter) * 0.1
            parameter.copy_(spread if parameter.dim() > 1 else parameter + spread)
        for name, buffer in model.named_buffers():
            if name in saved and buffer.is_floating_point():
                buffer.add_(torch.randn_like(buffer) * 0.3)
    model.generation_config.eos_token_id = 0
    model.save_pretrained(folder)


async def play(folder: Path) -> Played:
    """Three steps of RL; needs a process group of one rank."""
    optimizer = OptimizerConfig(lr=1e-3)
    config = RlLearnerConfig(threads=1, optimizer=optimizer)
    learner = Learner(folder, ModelConfig(path=str(folder)), config, steps=STEPS)
    vocabulary, rng = learner.policy.model.config.get_text_config().vocab_size, np.random.default_rng(0)
    text = rng.integers(1, vocabulary, 90).astype(np.int32)
    before = learner.logprobs([all_trained(text)])[0]
    apart: list[float] = []
    engine = await started(folder)
    try:
        for version in range(STEPS):
            prompts = [rng.integers(1, vocabulary, size).astype(np.int32) for size in PROMPTS]
            batch = rewarded(await asyncio.gather(*(say(engine, *one, version) for one in enumerate(prompts))))
            pairs = zip(learner.logprobs(batch), batch, strict=True)
            apart.append(max(float(np.abs(own - one.rollout_logprobs[one.loss_mask]).max()) for own, one in pairs))
            learner.step(batch, version)
            await engine.load(version + 1, in_one_file(learner))
        updated = await engine.logprobs(text)
    finally:
        engine.shutdown()
    own = learner.logprobs([all_trained(text)])[0]
    apart.append(float(np.abs(updated - own).max()))
    written = folder.with_name("written")
    learner.save_model(written)
    for file in folder.glob("token*"):
        shutil.copy(file, written)
    again = await started(written)
    try:
        exported = float(np.abs(await again.logprobs(text) - updated).max())
    finally:
        again.shutdown()
    return Played(learner.policy.way.packed, tuple(apart), float(np.abs(own - before).max()), exported)


async def started(folder: Path) -> PolicyAdapter:
    config = EngineConfig(dtype="float32", max_concurrent=8, kv_cache_gib=0.25)
    engine = PolicyAdapter(str(folder), config, max_tokens=LONGEST, tag_tokens=frozenset())
    await engine.name_version(0)
    return engine


async def say(engine: PolicyAdapter, seed: int, prompt: Tokens, version: int) -> Sample:
    """A turn, whose weights are its reward: the share of its tokens that are odd."""
    ask = Ask(prompt=prompt, turn=0, max_tokens=TURN_TOKENS, constraint=None)
    said = await engine.generate(ask, sampling=SamplingConfig(), stops=Stops((), ()), seed=seed, priority=0)
    ids = np.concatenate([prompt, said.token_ids]).astype(np.int32)
    mask = np.arange(len(ids)) >= len(prompt)
    logprobs, weights = np.zeros((2, len(ids)), np.float32)
    logprobs[mask], weights[mask] = said.logprobs, np.mean(said.token_ids % 2)
    versions = np.where(mask, version, -1).astype(np.int32)
    return Sample(
        token_ids=ids,
        loss_mask=mask,
        imitate=np.zeros(len(ids), np.float32),
        reinforce=weights,
        rollout_logprobs=logprobs,
        versions=versions,
        group=0,
    )


def rewarded(samples: Sequence[Sample]) -> list[Sample]:
    """The samples of a group with their rewards less the mean."""
    mean = np.mean([one.reinforce[one.loss_mask][0] for one in samples])
    for one in samples:
        one.reinforce[one.loss_mask] -= mean
    return list(samples)


def in_one_file(learner: Learner) -> Any:
    """The weights that are published, as a safetensors file in memory."""
    parts = learner.parts()
    header = np.frombuffer(parts.layout.header(), np.uint8)
    return np.concatenate([header, *(piece.copy() for _, piece in parts.pieces())])


def main() -> None:
    import os

    import torch.distributed as dist

    os.environ["LOCAL_RANK"] = "0"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        for family in sys.argv[1:] or FAMILIES:
            make_served(family, folder / family / "model")
            print(family, asyncio.run(play(folder / family / "model")), flush=True)


if __name__ == "__main__":
    main()
