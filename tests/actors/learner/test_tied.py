"""Learners of models whose output projection is tied to the embeddings, or said to be."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from actors.learner.config import LoraConfig, ModelConfig, Objective
from actors.learner.learner import Learner
from actors.learner.model.load import load_model
from coa.errors import UserError
from coa.learning.schedule import OptimizerConfig
from tests.actors.learner.test_learner import CONFIG, batches, distance, learn, weights_of
from tests.support import ranks
from tests.support.tiny import make_model


def make_tied_model(folder: Path) -> Path:
    make_model(folder)
    tied = load_model(folder, ModelConfig())
    tied.config.tie_word_embeddings = True
    tied.tie_weights()
    tied.save_pretrained(folder)
    return folder


def test_adapters_of_a_tied_output_projection_are_refused(one_rank: None, tmp_path: Path) -> None:
    """Merged, they would change the embeddings too."""
    pytest.importorskip("peft")
    source = make_tied_model(tmp_path / "tied")
    config = replace(CONFIG, lora=LoraConfig(rank=4, targets=("q_proj", "lm_head")))
    with pytest.raises(UserError, match=r"learner\.lora\.targets: lm_head is tied to the embeddings"):
        Learner(source, ModelConfig(), config, steps=1)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_without_gradients_matrices_shrink_by_rate_times_decay_and_nothing_else_changes(
    stage: int, tied: bool, one_rank: None, tmp_path: Path
) -> None:
    source = (make_tied_model if tied else make_model)(tmp_path / "model")
    config = replace(CONFIG, optimizer=OptimizerConfig(lr=0.01, weight_decay=0.1), zero_stage=stage)
    learner = Learner(source, ModelConfig(), config, steps=2)
    expected = {name: weight.clone() for name, weight in weights_of(learner).items()}
    for version in range(2):
        silent = [
            replace(sample, imitate=sample.imitate * 0, reinforce=sample.reinforce * 0) for sample in batches()[0]
        ]
        assert learner.step(silent, version).grad_norm == 0
        for weight in (weight for weight in expected.values() if weight.ndim >= 2):
            weight.mul_(1 - 0.01 * 0.1)
    found = weights_of(learner)
    assert found.keys() == expected.keys()
    assert {weight.ndim for weight in found.values()} == {1, 2}
    assert [name for name, weight in found.items() if not torch.equal(weight, expected[name])] == []


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_tied_model_learns_one_tensor_from_both_ends_and_stays_tied(
    stage: int, one_rank: None, tmp_path: Path
) -> None:
    source = make_tied_model(tmp_path / "tied")
    learner, _ = learn(source, replace(CONFIG, zero_stage=stage))
    found = weights_of(learner)
    assert found.keys() == load((source / "model.safetensors").read_bytes()).keys()
    assert "lm_head.weight" not in found
    learner.save_model(tmp_path / "saved")
    again = load_model(tmp_path / "saved", ModelConfig())
    assert again.config.tie_word_embeddings
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert distance({name: weight.detach().clone() for name, weight in again.named_parameters()}, found) == 0


@pytest.mark.parametrize("checkpointing", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_gradient_of_a_tied_tensor_is_the_sum_of_its_two_uses(
    stage: int, checkpointing: bool, one_rank: None, tmp_path: Path
) -> None:
    """That of plain transformers and autograd. Logits are computed in chunks of 16 positions."""
    from transformers import AutoModelForCausalLM

    source = make_tied_model(tmp_path / "tied")
    plain: Any = AutoModelForCausalLM.from_pretrained(source)
    samples = [
        replace(one, imitate=one.loss_mask.astype(np.float32), reinforce=one.reinforce * 0) for one in batches()[0]
    ]
    total = sum(int(one.loss_mask.sum()) for one in samples)
    for one in samples:
        ids, trained = torch.from_numpy(one.token_ids).long(), torch.from_numpy(one.loss_mask[1:])
        logprobs = plain(input_ids=ids[None]).logits[0, :-1].log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
        (-logprobs[trained].sum() / total).backward()
    expected = {name: parameter.grad for name, parameter in plain.named_parameters()}
    config = replace(
        CONFIG,
        zero_stage=stage,
        gradient_checkpointing=checkpointing,
        logits_bytes=4 * plain.config.vocab_size * 16,
        optimizer=OptimizerConfig(lr=1e-3, beta1=0.0, clip_norm=1e9),
    )
    case = ranks.Case(model=source, config=config, objective=Objective(algorithm="imitation"), shares=(tuple(samples),))
    [gradients] = ranks.outcome_of(case, samples).gradients
    assert ranks.distance(gradients, expected) < 1e-5


@pytest.mark.parametrize("stage", [1, 3])
def test_a_projection_in_the_files_is_taken_although_the_configuration_ties(
    stage: int, one_rank: None, tmp_path: Path
) -> None:
    source = make_model(tmp_path / "model")
    written = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**written, "tie_word_embeddings": True}))
    learner = Learner(source, ModelConfig(), replace(CONFIG, zero_stage=stage), steps=1)
    assert learner.policy.model.config.tie_word_embeddings is False
    assert distance(weights_of(learner), load((source / "model.safetensors").read_bytes())) == 0
