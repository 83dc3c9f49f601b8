"""A step of training for families of models, whole and with adapters, sharded and not: what is written afterwards is
what the learner says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from actors.learner.config import ALL_LINEAR, LoraConfig, ModelConfig, Objective, RlLearnerConfig
from actors.learner.learner import Learner
from coa.errors import UserError
from coa.learning.samples import all_trained
from coa.learning.schedule import OptimizerConfig
from coa.types import Sample
from tests.support.families import SAME, made, plain, tiny_config
from tests.support.ranks import Case, distance, on_ranks

pytestmark = pytest.mark.slow
FAMILIES = (
    "cohere2",
    "deepseek_v3",
    "falcon_h1",
    "gemma2",
    "gemma3_text",
    "glm4_moe",
    "gpt_oss",
    "granite",
    "lfm2",
    "mistral",
    "mixtral",
    "olmo2",
    "phi3",
    "qwen3_moe",
    "qwen3_next",
    "starcoder2",
)
EXPERTS = {"deepseek_v3", "glm4_moe", "gpt_oss", "mixtral", "qwen3_moe", "qwen3_next"}
ADAPTERS = {"whole": LoraConfig(), "adapters": LoraConfig(rank=2, targets=(ALL_LINEAR,))}


def weighed(size: int, seed: int) -> Sample:
    rng = np.random.default_rng(seed)
    sample = all_trained(rng.integers(3, 90, size).astype(np.int32))
    sample.reinforce[1:] = rng.normal(size=size - 1)
    return sample


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("kind", ADAPTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_trained_is_what_is_written(family: str, kind: str, stage: int, one_rank: None, tmp_path: Path) -> None:
    made(tiny_config(family), tmp_path / "model")
    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=0)
    config = RlLearnerConfig(threads=1, zero_stage=stage, lora=ADAPTERS[kind], optimizer=optimizer)
    model_config = ModelConfig(path=str(tmp_path / "model"))
    if family in EXPERTS and (kind, stage) == ("adapters", 3):
        with pytest.raises(UserError, match=r"experts are adapted with learner\.zero_stage 1 and 2 only"):
            Learner(tmp_path / "model", model_config, config, steps=2)
        return
    learner = Learner(tmp_path / "model", model_config, config, steps=2)
    samples = [weighed(size, size) for size in (40, 9, 33)]
    before = learner.logprobs(samples)
    model: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model", attn_implementation="eager").eval()
    own = plain(model, [one.token_ids for one in samples])
    assert max(np.abs(a - b.numpy()).max() for a, b in zip(before, own, strict=True)) < SAME
    assert learner.step(samples, 0).updates == 1
    trained = learner.logprobs(samples)
    assert max(np.abs(a - b).max() for a, b in zip(trained, before, strict=True)) > 5 * SAME
    learner.save_model(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out", attn_implementation="eager").eval()
    with torch.no_grad():
        own = plain(model, [one.token_ids for one in samples])
    assert max(np.abs(a - b.numpy()).max() for a, b in zip(trained, own, strict=True)) < SAME


@pytest.mark.parametrize("stage", [1, 3])
def test_two_ranks_learn_what_one_does(stage: int, tmp_path: Path) -> None:
    """Packed and one by one, with experts, windows, states and caps, of unequal numbers of samples."""
    optimizer = OptimizerConfig(lr=1e-3, beta1=0.0, clip_norm=1e9)
    config = RlLearnerConfig(threads=1, zero_stage=stage, optimizer=optimizer)
    shares = tuple(weighed(size, size) for size in (40, 9, 33)), (weighed(25, 25),)
    cases: dict[str, Case] = {}
    for family in ("falcon_h1", "gemma2", "lfm2", "mixtral", "phi3", "qwen3_next"):
        made(tiny_config(family), folder := tmp_path / family)
        settings = {"path": str(folder)}
        cases[family] = Case(
            model=folder, config=config, objective=Objective(), shares=(sum(shares, ()),), model_settings=settings
        )
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    alone = on_ranks(tmp_path / "one", cases)
    both = {name: replace(case, config=replace(config, ranks=2), shares=shares) for name, case in cases.items()}
    for name, found in on_ranks(tmp_path / "two", both).items():
        assert distance(found.gradients[0], alone[name].gradients[0]) < 1e-4, name
        assert found.weights.keys() == alone[name].weights.keys()
