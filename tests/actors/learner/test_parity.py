"""A model is compared with itself before it is trained: in packed rows, in its gradients, in what is written of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, Qwen3Config

from actors.learner.attention import BRANCHED
from actors.learner.config import LoraConfig, ModelConfig
from actors.learner.lora import sources
from actors.learner.model.head import Scaling, decoder_of, scaling_of
from actors.learner.model.load import load_model
from actors.learner.model.merged import check_written
from actors.learner.model.parity import (
    Copied,
    Parity,
    Way,
    gradients_apart,
    numberless,
    sample_sequences,
    settle,
    settled_copy,
    tiny_copy,
    unlike_linear,
    usual_tokens,
)
from actors.learner.policy import PackedPolicy, TrainedPolicy, check_trained, parity_of, to_tensors
from coa.errors import UserError
from coa.learning.packing import micro_batch
from coa.learning.samples import all_trained
from tests.support.families import FEATURES, SAME, apart, made, packed, plain, tiny_config

PACKED = Way(BRANCHED, packed=True)
SIZES: dict[str, Any] = {"vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
HEADS: dict[str, Any] = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
KINDS = {
    "gemma2": True,  # attention scores are capped, and logits
    "gpt_oss": True,  # attention sinks, windows in every second layer
    "granite": True,  # logits are divided
    "starcoder2": True,  # dropout that is a function
    "phimoe": True,  # the router draws at random in training
    "lfm2": False,  # convolutions carry a state from token to token
    "qwen3_next": False,  # so does the gated delta rule
    "phi3": False,  # rotary factors follow the longest sample of a row
    "llama4_text": False,  # attention in chunks, by a mask of its own
}
"""Families by what is special in them, and whether their samples are packed."""


def loaded(family: str, folder: Path) -> TrainedPolicy:
    made(tiny_config(family), folder)
    return TrainedPolicy(load_model(folder, ModelConfig(path=str(folder)))).train()


@pytest.mark.parametrize(("family", "is_packed"), KINDS.items())
def test_each_kind_of_model_gives_in_training_what_it_gives_by_itself(
    family: str, is_packed: bool, tmp_path: Path
) -> None:
    policy = loaded(family, tmp_path)
    found = settle(policy, policy)
    assert found.way.packed is is_packed
    reference = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    rng = np.random.default_rng(3)
    sequences = [rng.integers(3, 90, size).astype(np.int32) for size in (40, 9, 33)]
    expected = plain(reference, sequences)
    assert torch.cat(expected).std() > 0.2
    assert apart(packed(policy, sequences), expected) < SAME


def test_a_batch_of_several_samples_is_right_also_where_each_goes_alone(tmp_path: Path) -> None:
    policy = loaded("lfm2", tmp_path)
    rng = np.random.default_rng(0)
    samples = [all_trained(rng.integers(3, 90, size).astype(np.int32)) for size in (20, 30)]
    with torch.no_grad():
        together, *alone = (
            policy(**to_tensors(micro_batch([group]), torch.device("cpu"))).logprobs
            for group in (samples, samples[:1], samples[1:])
        )
    assert torch.equal(together, torch.cat(alone))


def test_a_model_whose_logits_are_made_otherwise_is_refused_with_the_distance(tmp_path: Path) -> None:
    made(tiny_config("electra"), tmp_path)
    with pytest.raises(UserError, match=r"^ElectraForCausalLM can't be trained here: log-probs are [\d.]+ nats from"):
        TrainedPolicy(AutoModelForCausalLM.from_pretrained(tmp_path))


def test_parameters_that_would_be_saved_under_one_of_their_names_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"parameters lm_head\.decoder\.bias have several names, and only one of them"):
        loaded("bert-generation", tmp_path)


class Broken(PackedPolicy):
    """A policy that is wrong in packed rows by `by` nats."""

    by = 0.01

    def compared(self, samples: Any, run: Any) -> list[Tensor]:
        return [one + self.by * self.way.packed for one in super().compared(samples, run)]


def qwen3() -> Any:
    return tiny_copy(Qwen3Config(**SIZES, **HEADS), "sdpa")


def test_the_next_way_is_taken_where_the_first_does_not_agree() -> None:
    policy = Broken(qwen3())
    found = settle(policy, policy)
    assert (found.way, policy.way) == (Way("sdpa", packed=False),) * 2
    assert [(way, round(nats, 4)) for way, nats in found.others] == [(PACKED, 0.01)]
    own = f"one sample at a time, sdpa attention: {found.apart:.2g} nats from the model's own pass"
    assert str(found) == f"{own}; samples in packed rows: 0.01"


def test_all_ranks_take_the_way_that_suits_the_worst_of_them() -> None:
    policy = PackedPolicy(qwen3())
    answers = iter((0.5, 0.0))
    assert settle(policy, policy, lambda apart: max(apart, next(answers))).way == Way("sdpa", packed=False)


def test_what_agrees_in_no_way_is_refused() -> None:
    policy = Broken(qwen3())
    policy.ways = (PACKED,)
    with pytest.raises(UserError, match=r"can't be trained here: .* 0\.01 nats .* \(samples in packed rows\)$"):
        settle(policy, policy)


def test_a_model_whose_own_pass_gives_no_numbers_is_refused() -> None:
    policy = PackedPolicy(qwen3())
    nn.init.constant_(policy.model.lm_head.weight, float("nan"))
    with pytest.raises(UserError, match="log-probs of the model's own pass are not finite"):
        settle(policy, policy)


def test_the_mean_counts_in_narrow_types_and_the_largest_in_wide_ones() -> None:
    policy = Broken(qwen3().to(torch.bfloat16))
    assert settle(policy, policy).way == PACKED, "0.01 is what bfloat16 rounds"
    policy.by = 0.5
    assert settle(policy, policy).way == Way("sdpa", packed=False)


def test_gradients_are_compared_too() -> None:
    policy = PackedPolicy(qwen3()).train()
    assert gradients_apart(policy)[1] < 1e-3
    weight = policy.model.model.layers[1].mlp.up_proj.weight
    policy.model.lm_head.register_full_backward_hook(lambda *_: None)
    compared = policy.compared

    def detached(samples: Any, run: Any) -> list[Tensor]:
        weight.requires_grad_(False)
        found = compared(samples, run)
        weight.requires_grad_(True)
        return found

    policy.compared = detached  # pyright: ignore[reportAttributeAccessIssue]
    assert gradients_apart(policy) == ("model.layers.1.mlp.up_proj.weight", 1.0)


class Forgetful(PackedPolicy):
    """A policy that trains its last norm with a gradient of its own."""

    def compared(self, samples: Any, run: Any) -> list[Tensor]:
        norm = self.model.model.norm.weight
        return [one + 0.1 * (norm - norm.detach()).sum() for one in super().compared(samples, run)]


def test_a_model_whose_gradients_are_not_its_own_is_refused() -> None:
    copied = Copied.of(Qwen3Config(**SIZES, **HEADS), "sdpa")
    with pytest.raises(
        UserError, match=r"^qwen3 can't be trained here: the gradient of model\.norm\.weight differs by"
    ):
        settled_copy(copied, Forgetful)


def test_sequences_are_drawn_without_the_tokens_that_have_a_meaning() -> None:
    config = Qwen3Config(**SIZES, **HEADS, eos_token_id=[2, 3], pad_token_id=0)
    config.image_token_index = 95  # as models with images have
    assert usual_tokens(config).tolist() == [1, *range(4, 95)]
    assert not {0, 2, 3, 95} & {int(token) for one in sample_sequences(config) for token in one}


def test_a_copy_that_can_not_be_made_is_no_reason_to_refuse() -> None:
    config = Qwen3Config(**SIZES, **HEADS)
    config.hidden_act = "no such function"
    assert parity_of(config, "sdpa") is None
    does_not_run = Qwen3Config(**SIZES, num_attention_heads=3, num_key_value_heads=2, head_dim=8)
    assert parity_of(does_not_run, "sdpa") is None


def test_a_copy_is_made_once_for_a_configuration() -> None:
    one, other = (Copied.of(Qwen3Config(**SIZES, **HEADS), name) for name in ("sdpa", "flash_attention_2"))
    assert one == other, "kernels for GPUs are compared with the model itself"
    assert parity_of(one.config, "sdpa") is parity_of(other.config, "sdpa")


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("qwen3", Scaling()),
        ("gemma2", Scaling(1.0, FEATURES["final_logit_softcapping"])),
        ("cohere", Scaling(FEATURES["logit_scale"])),
        ("granite", Scaling(1 / FEATURES["logits_scaling"])),
        ("falcon_h1", Scaling(FEATURES["lm_head_multiplier"])),
    ],
)
def test_what_a_model_does_with_its_logits_is_measured(family: str, expected: Scaling) -> None:
    found = scaling_of(tiny_copy(tiny_config(family), "eager"))
    assert found.factor == pytest.approx(expected.factor, rel=1e-6)
    assert found.cap == expected.cap


def test_logits_that_are_neither_scaled_nor_capped_are_refused() -> None:
    model: Any = qwen3()
    model.register_forward_hook(lambda _module, _args, output: setattr(output, "logits", output.logits**2))
    with pytest.raises(UserError, match="Qwen3ForCausalLM does more with its logits than to multiply or to cap them"):
        scaling_of(model)


def test_the_decoder_is_found_where_the_output_projection_has_its_name(tmp_path: Path) -> None:
    model: Any = tiny_copy(tiny_config("modernbert-decoder"), "eager")
    assert model.get_decoder() is model.get_output_embeddings()
    assert decoder_of(model) is model.model


def test_layers_that_are_not_used_as_such_are_known() -> None:
    policy = PackedPolicy(tiny_copy(AutoConfig.for_model("mamba", **SIZES, state_size=4, time_step_rank=4), "eager"))
    assert "backbone.layers.*.mixer.dt_proj" in unlike_linear(policy)
    assert numberless("model.layers.12.mlp.experts.3.up") == "model.layers.*.mlp.experts.*.up"


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt2", "mamba", "glm4_moe"])
def test_adapters_are_merged_into_whatever_they_adapt(family: str) -> None:
    """Fused experts, transposed matrices, layers that are never called, saved buffers beside."""
    lora = LoraConfig(rank=2, targets=("all-linear",))
    assert isinstance(check_trained(tiny_config(family), "sdpa" if family != "mamba" else "eager", lora), Parity)


def test_saved_buffers_are_written_and_a_copy_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    config, name = tiny_config("glm4_moe"), "model.layers.1.mlp.gate.e_score_correction_bias"
    model = tiny_copy(config, "sdpa")
    assert dict(model.named_buffers())[name].std() > 0.01
    assert {one.name for one in sources(model)} == set(model.state_dict())
    monkeypatch.setattr("actors.learner.lora._own", lambda module: module.named_parameters(recurse=False))
    with pytest.raises(UserError, match=r"^Glm4MoeForCausalLM: its weights can't be written.*e_score_correction_bias"):
        check_written.__wrapped__(Copied.of(config, "sdpa"), LoraConfig(), frozenset(), PackedPolicy)


def test_adapters_that_would_be_merged_wrongly_are_refused() -> None:
    with pytest.raises(UserError, match=r"with its adapters merged it is [\d.]+ nats from what was trained"):
        check_trained(tiny_config("hrm_text"), "sdpa", LoraConfig(rank=2, targets=("all-linear",)))
