"""Ranks that share rows learn what one process does, and what they can't share is refused."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3NextConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from actors.learner.attention import Line, branched_attention
from actors.learner.config import LoraConfig, Objective, RlLearnerConfig, ValueHeadConfig
from actors.learner.policy import PackedPolicy, to_tensors
from actors.learner.sequence.groups import SequenceGroup, sequence_group
from coa.errors import UserError
from coa.learning.losses import LossConfig, Proximal
from coa.learning.packing import Branch, PackingConfig, micro_batch
from coa.learning.schedule import OptimizerConfig
from coa.types import NO_GROUP, Sample
from tests.support.one_process import check, make_model, samples_of
from tests.support.ranks import Case, on_ranks
from tests.support.tiny import random_sample

VOCABULARY = 1000
CONFIG = RlLearnerConfig(
    ranks=2,
    sequence_parallel=2,
    optimizer=OptimizerConfig(lr=1e-3, beta1=0.0, clip_norm=1e9),
    value_head=ValueHeadConfig(lr=1e-3),
    # Several samples in a row, and rows whose tokens no number of ranks divides.
    packing=PackingConfig(row_tokens=150, rows=2),
    logits_bytes=4 * VOCABULARY * 50,
    threads=1,
)
SHAPE = {"vocab_size": VOCABULARY, "num_attention_heads": 4}
CLIPPED = LossConfig(proximal=Proximal.sampler)
"""Ratios to what was said to have sampled the tokens are far from 1."""
LORA = LoraConfig(rank=4, alpha=8.0, targets=("q_proj", "up_proj"))
PPO = Objective(algorithm="ppo", settings={"gae_lambda": 0.9})
GSPO = Objective(algorithm="gspo", settings={"clip_low": 0.2, "clip_high": 0.2})
KL = Objective(settings={"kl_weight": 0.5}, temperature=0.7)
Settings = tuple[dict[str, Any], Objective]


def made(tokens: int, groups: list[int], *, seed: int = 0) -> tuple[Sample, ...]:
    return samples_of(tokens, groups=groups, seed=seed, vocabulary=VOCABULARY)


def demonstrations() -> tuple[Sample, ...]:
    return made(97, [NO_GROUP] * 4) + made(171, [NO_GROUP], seed=1)


def episodes() -> tuple[Sample, ...]:
    """Of groups 0 to 3, and a demonstration; one is longer than a row."""
    return made(201, [0, 1, 2, 3, 0, NO_GROUP]) + made(190, [2], seed=1)


def test_ranks_that_share_rows_wait_for_one_another_as_long_as_any_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[list[int], timedelta]] = []

    def new_group(ranks: list[int], *, timeout: timedelta) -> int:
        made.append((ranks, timeout))
        return len(made)

    monkeypatch.setattr(dist, "get_rank", lambda: 3)
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    monkeypatch.setattr(dist, "new_group", new_group)
    limit = timedelta(seconds=90)
    assert sequence_group(2, limit) == SequenceGroup(2, 1, 2)
    assert made == [([0, 1], limit), ([2, 3], limit)]
    assert sequence_group(1, limit) is None


def test_two_ranks_that_share_rows_have_the_gradients_of_one_process(tmp_path: Path) -> None:
    """Of a model with tied embeddings, and one head of keys and values for both ranks."""
    model = make_model(tmp_path / "model", **SHAPE, tie_word_embeddings=True)
    imitated = Case(model=model, config=CONFIG, objective=Objective(), shares=(demonstrations(),) * 2)
    config = replace(CONFIG, zero_stage=3, loss=CLIPPED)
    reinforced = Case(model=model, config=config, objective=Objective(), shares=(episodes(),) * 2)
    cases = {"imitated": imitated, "reinforced": reinforced}
    found = on_ranks(tmp_path, cases)
    for name, case in cases.items():
        check(name, case, found[name])
    assert found["reinforced"].reports[0].clip_fraction > 0.1


def two(stage: int) -> dict[str, Settings]:
    """Everything that may be set beside a stage, for one group of two."""
    updates = {"updates_per_batch": 4}
    return {
        f"stage {stage}, {name}": ({"zero_stage": stage, **settings}, objective)
        for name, settings, objective in (
            ("plain", {}, Objective()),
            ("clipped, 4 updates", {"loss": CLIPPED, **updates}, Objective()),
            ("gspo", updates, GSPO),
            ("values", {"lora": LORA, "gradient_checkpointing": True, **updates}, PPO),
            ("reference, temperature", {"gradient_checkpointing": True, **updates}, KL),
            ("reference beside adapters", {"lora": LORA}, KL),
        )
    }


def four() -> dict[str, Settings]:
    """Groups of unequal work, and a group of all."""
    updates = {"ranks": 4, "updates_per_batch": 4}
    return {
        "two groups, stage 1": ({"ranks": 4, "zero_stage": 1}, Objective()),
        "two groups, stage 2, 4 updates": ({"zero_stage": 2, **updates}, Objective()),
        "two groups, stage 3, values": ({"zero_stage": 3, **updates}, PPO),
        "a group of four, stage 3": ({"zero_stage": 3, "sequence_parallel": 4, **updates}, KL),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    "matrix",
    [*(pytest.param(two(stage), id=f"two, stage {stage}") for stage in (1, 2, 3)), pytest.param(four(), id="four")],
)
def test_ranks_that_share_rows_have_the_gradients_of_one_process(matrix: dict[str, Settings], tmp_path: Path) -> None:
    """Of 4 heads with 2 heads of keys and values, which a group of four has to repeat."""
    pytest.importorskip("peft")
    model = make_model(tmp_path / "model", **SHAPE, num_key_value_heads=2)
    cases: dict[str, Case] = {}
    for name, (settings, objective) in matrix.items():
        config = replace(CONFIG, **settings)
        dealt = (episodes(), made(38, [1, 3], seed=2)) if config.replicas == 2 else (episodes(),)
        shares = tuple(share for share in dealt for _ in range(config.sequence_parallel))
        cases[name] = Case(model=model, config=config, objective=objective, shares=shares)
    found = on_ranks(tmp_path, cases)
    for name, case in cases.items():
        check(name, case, found[name])


SIZES: dict[str, Any] = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
STRETCHED = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10_000.0}
REFUSED: dict[str, tuple[PreTrainedConfig, int, str]] = {
    "heads": (LlamaConfig(**SIZES), 3, "is 3, expected a divisor of the model's 4 attention heads"),
    "positions": (LlamaConfig(**SIZES, rope_parameters=STRETCHED), 2, "rotary embeddings of the kind dynamic"),
    "linear attention": (
        Qwen3NextConfig(**SIZES, head_dim=16, layer_types=["linear_attention", "full_attention"], num_experts=2),
        2,
        "layers of the kind linear_attention",
    ),
}


@pytest.mark.parametrize(("config", "size", "said"), REFUSED.values(), ids=REFUSED)
def test_models_whose_rows_ranks_can_not_share_are_refused(config: PreTrainedConfig, size: int, said: str) -> None:
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa")
    with pytest.raises(UserError, match=said):
        PackedPolicy(model, sequence=SequenceGroup(size, 0, None))


def test_flash_attention_is_told_of_the_whole_row_and_of_this_ranks_heads(
    one_rank: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a stand-in for its kernel, which runs on GPUs alone, in a group of one rank."""
    told: list[Any] = []

    def kernel(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: None, **how: Any) -> tuple[Tensor, None]:
        told.append((module.config._attn_implementation, how["cu_seq_lens_q"].tolist(), how["max_length_k"]))
        none = np.zeros(0, np.int64)
        line = Line([Branch(none, tokens) for tokens in how["cu_seq_lens_q"].diff().tolist()], query.device)
        return branched_attention(module, query, key, value, mask, line=line, scaling=how["scaling"])

    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "flash_attention_2", kernel)
    model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES), attn_implementation="sdpa")
    rng = np.random.default_rng(0)
    inputs: Any = to_tensors(micro_batch([[random_sample(rng, 300) for _ in range(3)]]), torch.device("cpu"))
    with torch.no_grad():
        expected = PackedPolicy(model)(**inputs)
        model.config._attn_implementation_internal = "flash_attention_2"
        found = PackedPolicy(model, sequence=SequenceGroup(1, 0, dist.group.WORLD))(**inputs)
    assert (found - expected).abs().max() < 1e-5
    bounds = [0, *np.cumsum(inputs["places"].line.sizes).tolist()]
    assert told == [("flash_attention_2", bounds, max(np.diff(bounds)))] * 2
