"""The packed policy: any causal model gives the log-probs that transformers gives, however its rows are attended."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertModel,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)

import actors.learner.policy
from actors.learner.attention import Line, tree_mask, varlen_arguments
from actors.learner.config import VARLEN, LearnerConfig, ModelConfig
from actors.learner.logits import chosen_logprobs
from actors.learner.lora import sources
from actors.learner.model.load import load_model, shared
from actors.learner.packing import packing_of
from actors.learner.policy import PackedPolicy, to_tensors
from coa.errors import UserError
from coa.learning.packing import ONE_SAMPLE, Branch, PackingConfig, micro_batch, pack
from coa.pretrained.weights import ADAPTER, WITH_ADAPTERS
from coa.types import Sample
from tests.support.families import tiny_config
from tests.support.tiny import random_sample

VOCABULARY = 300
SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
EXPERTS = {**SIZES, "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
QWEN2 = Qwen2Config(**SIZES, tie_word_embeddings=True)
"""Tied, as Qwen2.5-3B is."""
CONFIGS: dict[str, PreTrainedConfig] = {
    "qwen2": QWEN2,
    "llama": LlamaConfig(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "mistral, window of 16": MistralConfig(**SIZES, sliding_window=16),
    "qwen3, a mixture of experts": Qwen3MoeConfig(**EXPERTS),
    "falcon, attention of its own": FalconConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=0,
        eos_token_id=0,
    ),
    "gemma3, window of 16 in some layers": Gemma3TextConfig(**SIZES, head_dim=16, sliding_window=16),
}
LINEAR = Qwen3NextConfig(**EXPERTS, layer_types=["linear_attention", "full_attention"])


def make(config: PreTrainedConfig, *, spread: float = 0.2) -> Any:
    """Random weights, large enough that log-probs are far apart."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=spread)
    return model


def samples() -> list[Sample]:
    """Five; the second begins as the first, the third as the second, the fourth as the first for fewer tokens."""
    rng = np.random.default_rng(1)
    one, two, three, four, five = (random_sample(rng, VOCABULARY) for _ in range(5))
    two = following(one, 12, two)
    return [one, two, following(two, 15, three), following(one, 3, four), five]


def following(one: Sample, tokens: int, other: Sample) -> Sample:
    """The other sample behind so many tokens of the one; what is trained of them is as in the other."""
    return replace(other, token_ids=np.concatenate([one.token_ids[:tokens], other.token_ids])[: len(other)])


def packed(policy: PackedPolicy, rows: list[list[Sample]]) -> Tensor:
    return policy(**to_tensors(micro_batch(rows), torch.device("cpu")))


def plain(model: Any, sample: Sample) -> Tensor:
    """The log-probs of the trained tokens by the model's own forward pass over the sample alone, whose attention leaves
    nothing out."""
    token_ids = torch.from_numpy(sample.token_ids).long()
    chosen = model.config._attn_implementation
    model.set_attn_implementation("eager")
    logprobs = model(token_ids[None]).logits[0].float().log_softmax(-1)
    model.set_attn_implementation(chosen)
    where = np.nonzero(sample.loss_mask)[0]
    return logprobs[where - 1, token_ids[where]]


@pytest.mark.parametrize("masked_tokens", [512, 0], ids=["masked", "branched"])
@pytest.mark.parametrize("name", CONFIGS)
def test_packed_rows_give_the_logprobs_of_the_model_itself(
    name: str, masked_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actors.learner.policy, "MASKED_TOKENS", masked_tokens)
    model = make(CONFIGS[name])
    with torch.no_grad():
        expected = torch.cat([plain(model, sample) for sample in samples()])
        found = packed(PackedPolicy(model), [samples()[:3], samples()[3:]])
    assert expected.std() > 0.2
    assert (found - expected).abs().max() < 1e-5


def test_masked_and_branched_rows_have_the_same_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[dict[str, Tensor]] = []
    for masked_tokens in (512, 0):
        monkeypatch.setattr(actors.learner.policy, "MASKED_TOKENS", masked_tokens)
        policy = PackedPolicy(make(CONFIGS["qwen3"], spread=0.05))
        packed(policy, [samples()[:3], samples()[3:]]).sum().backward()
        found.append({name: p.grad for name, p in policy.named_parameters() if p.grad is not None})
    masked, branched = found
    assert masked.keys() == branched.keys()
    for name, gradient in masked.items():
        assert (gradient - branched[name]).abs().max() <= 1e-5 * gradient.abs().max(), name


def test_bfloat16_is_near_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(CONFIGS["qwen2"], spread=0.05)
    with torch.no_grad():
        exact = packed(PackedPolicy(model), [samples()])
        rounded = PackedPolicy(model.to(torch.bfloat16))
        for masked_tokens in (512, 0):
            monkeypatch.setattr(actors.learner.policy, "MASKED_TOKENS", masked_tokens)
            found = packed(rounded, [samples()])
            assert found.dtype is torch.float32
            assert (found - exact).abs().max() < 0.02


def test_logits_in_chunks_are_the_logits() -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 8)
    chosen = torch.randint(50, (23,))
    results = []
    for limit in (1 << 20, 5 * 4 * 50, 1):
        hidden = torch.randn(23, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
        projection = weight.clone().requires_grad_()
        calls: list[int] = []

        def project(part: Tensor, projection: Tensor = projection, calls: list[int] = calls) -> Tensor:
            calls.append(len(part))
            return part @ projection.T

        logprobs = chosen_logprobs(hidden, chosen, project, vocabulary=50, limit=limit).logprobs
        (logprobs * torch.arange(23)).sum().backward()
        results.append((logprobs.detach(), hidden.grad, projection.grad, calls))
    whole, fives, ones = results
    assert whole[3] == [23]
    # Each chunk is projected a second time on the way back.
    assert sorted(fives[3]) == sorted([5, 5, 5, 5, 3] * 2)
    assert ones[3] == [1] * 46
    for other in (fives, ones):
        for expected, found in zip(whole[:3], other[:3], strict=True):
            assert torch.allclose(expected, found, rtol=1e-5, atol=1e-5)


def test_a_policy_whose_logits_are_chunked_gives_the_same_logprobs() -> None:
    model = make(CONFIGS["llama"])
    rows = [samples()]
    with torch.no_grad():
        small = PackedPolicy(model, logits_bytes=4 * VOCABULARY * 3)
        assert torch.allclose(packed(PackedPolicy(model), rows), packed(small, rows), rtol=0, atol=1e-5)


def test_softcapped_logits_are_capped_in_chunks_too() -> None:
    torch.manual_seed(0)
    model = make(Gemma2Config(**SIZES, head_dim=16, sliding_window=512, final_logit_softcapping=2.0))
    with torch.no_grad():
        expected = torch.cat([plain(model, sample) for sample in samples()])
        found = packed(PackedPolicy(model, logits_bytes=4 * VOCABULARY * 3), [samples()])
    assert (found - expected).abs().max() < 1e-5
    uncapped = make(Gemma2Config(**SIZES, head_dim=16, sliding_window=512, final_logit_softcapping=None))
    with torch.no_grad():
        assert (torch.cat([plain(uncapped, sample) for sample in samples()]) - expected).abs().max() > 0.1


def test_the_temperature_divides_the_logits_and_the_entropy_is_the_distributions() -> None:
    logits = torch.tensor([[1.0, 2.0, 4.0], [0.0, 0.0, 0.0]])
    chosen = torch.tensor([2, 1])
    for limit in (1 << 20, 1):
        logprobs, entropy = chosen_logprobs(
            logits, chosen, lambda hidden: hidden, vocabulary=3, limit=limit, temperature=0.7, entropy=True
        )
        weights = [math.exp(value / 0.7) for value in (1.0, 2.0, 4.0)]
        shares = [weight / sum(weights) for weight in weights]
        assert logprobs.tolist() == pytest.approx([math.log(shares[2]), -math.log(3)], rel=1e-6)
        expected = -sum(share * math.log(share) for share in shares)
        assert entropy.tolist() == pytest.approx([expected, math.log(3)], rel=1e-5)


def test_a_token_that_samples_share_and_train_is_predicted_once() -> None:
    batch = micro_batch([[alone(5, 6, 7), alone(5, 6, 8)], [alone(5, 9)]])
    places: Any = to_tensors(batch, torch.device("cpu"))["places"]
    assert places.real.tolist() == [0, 1, 2, 3, 4, 5]
    assert places.predictors.tolist() == [0, 1, 1, 4]
    assert places.chosen.tolist() == [6, 7, 8, 9]
    assert places.targets.tolist() == [0, 1, 0, 2, 3]
    assert (places.line.sizes, places.line.seen) == ([3, 1, 2], [3, 3, 2])
    assert places.line.keys.tolist() == [0, 1, 2, 0, 1, 3, 4, 5]


def alone(*token_ids: int) -> Sample:
    """All of whose tokens are trained."""
    ids = np.array(token_ids, np.int32)
    zeros = np.zeros(len(ids), np.float32)
    return Sample(
        token_ids=ids,
        loss_mask=np.ones(len(ids), np.bool_),
        imitate=zeros,
        reinforce=zeros,
        rollout_logprobs=zeros,
        versions=ids,
    )


def test_flash_attention_is_told_where_the_samples_of_a_line_are() -> None:
    none = np.zeros(0, np.int64)
    told: Any = varlen_arguments(Line([Branch(none, tokens) for tokens in (3, 1, 2)], torch.device("cpu")))
    assert told["cu_seq_lens_q"].tolist() == told["cu_seq_lens_k"].tolist() == [0, 3, 4, 6]
    assert told["cu_seq_lens_q"].dtype is torch.int32
    assert told["max_length_q"] == told["max_length_k"] == 3


def test_a_mask_shows_a_token_its_own_sample_up_to_itself() -> None:
    mask = tree_mask(torch.tensor([[2, 2, 3, 0], [3, 2, 3, 0]]), torch.float32)
    assert mask.shape == (2, 1, 4, 4)
    assert (mask[0, 0] == 0).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    assert (mask[1, 0] == 0).int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 0, 1, 0], [0, 0, 0, 1]]


@pytest.mark.parametrize(("attention", "shares"), [("sdpa", True), ("eager", True), *((one, False) for one in VARLEN)])
def test_samples_are_packed_as_attention_can_take_them(attention: str, shares: bool) -> None:
    model = make(CONFIGS["qwen3"])
    model.config._attn_implementation_internal = attention
    asked = PackingConfig(row_tokens=512, rows=2)
    policy = PackedPolicy(model)
    assert policy.packing(asked) == replace(asked, share_prefixes=shares)
    assert packing_of(ModelConfig(attention=attention), LearnerConfig(packing=asked)) == policy.packing(asked)
    if not shares:
        shared = micro_batch([[alone(5, 6, 7), alone(5, 6, 8)]])
        with pytest.raises(AssertionError, match="whole samples"):
            policy(**to_tensors(shared, torch.device("cpu")))


def test_who_plans_knows_how_a_model_is_packed(tmp_path: Path) -> None:
    learner = LearnerConfig(packing=PackingConfig(row_tokens=512, rows=2))
    windows = CONFIGS["gemma3, window of 16 in some layers"]
    longrope = tiny_config("phi3")
    for config, packing in ((windows, learner.packing), (LINEAR, ONE_SAMPLE), (longrope, ONE_SAMPLE)):
        config.save_pretrained(tmp_path)
        assert packing_of(ModelConfig(path=str(tmp_path)), learner) == packing
    (tmp_path / "config.json").write_text('{"model_type": "of tomorrow"}')
    assert packing_of(ModelConfig(path=str(tmp_path)), learner) == learner.packing


def test_layers_that_carry_a_state_get_one_sample_at_a_time() -> None:
    policy = PackedPolicy(make(LINEAR))
    asked = PackingConfig(row_tokens=512, rows=2)
    with torch.no_grad():
        expected = [plain(policy.model, sample) for sample in samples()]
        for batch in pack(samples(), policy.packing(asked)):
            [member] = batch.members
            found = policy(**to_tensors(batch, torch.device("cpu")))
            assert (found - expected[member]).abs().max() < 1e-5


def test_tied_embeddings_stay_tied(tmp_path: Path) -> None:
    tied = make(QWEN2)
    tied.save_pretrained(tmp_path / "tied")
    model: Any = load_model(tmp_path / "tied", ModelConfig())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    with torch.no_grad():
        assert all(torch.equal(plain(model, sample), plain(tied, sample)) for sample in samples())
        model.get_output_embeddings().weight += 1.0
    names = {source.name for source in sources(model)}
    model.save_pretrained(tmp_path / "again")
    assert load_file(tmp_path / "again" / "model.safetensors").keys() == names
    again: Any = load_model(tmp_path / "again", ModelConfig())
    assert again.config.tie_word_embeddings
    assert again.get_output_embeddings().weight is again.get_input_embeddings().weight
    assert torch.equal(again.get_input_embeddings().weight, tied.get_input_embeddings().weight + 1.0)


def test_only_a_tie_gives_a_parameter_two_names() -> None:
    model = make(QWEN2)
    assert shared(model) == []
    model.more = nn.Module()
    model.more.weight = model.get_input_embeddings().weight
    assert shared(model) == ["more.weight"]
    other = make(LlamaConfig(**SIZES))
    other.lm_head.weight = other.model.layers[0].mlp.up_proj.weight
    assert shared(other) == ["lm_head.weight"]


def test_what_is_no_causal_language_model_is_refused(tmp_path: Path) -> None:
    encoder = BertModel(
        BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    )
    with pytest.raises(UserError, match="BertModel has no decoder with an output projection"):
        PackedPolicy(encoder)
    with pytest.raises(UserError, match="no model there"):
        load_model(tmp_path / "nothing", ModelConfig())


def test_no_tensor_is_trained_from_random_numbers_because_it_is_not_in_the_file(tmp_path: Path) -> None:
    make(CONFIGS["qwen3"]).save_pretrained(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    up, down = "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.down_proj.weight"
    wrong = {**tensors, "extra.weight": torch.zeros(3), down: torch.zeros(2, 2)}
    del wrong[up]
    save_file(wrong, path, metadata={"format": "pt"})
    with pytest.raises(UserError) as caught:
        load_model(tmp_path, ModelConfig())
    assert str(caught.value) == (
        f"{tmp_path}: its weights do not fit its config.json: 1 tensor is missing: {up}; 1 tensor is not expected: "
        f"extra.weight; 1 tensor is of another shape: {down} [2, 2], not {list(tensors[down].shape)}"
    )


def test_a_model_with_adapters_beside_it_is_not_taken_for_either(tmp_path: Path) -> None:
    """transformers would load both, and save the adapters alone."""
    make(CONFIGS["qwen3"]).save_pretrained(tmp_path)
    (tmp_path / ADAPTER).write_text('{"peft_type": "LORA"}')
    with pytest.raises(UserError) as refused:
        load_model(tmp_path, ModelConfig())
    assert str(refused.value) == f"{tmp_path}: {WITH_ADAPTERS}"


def test_an_attention_whose_package_is_missing_is_named(tmp_path: Path) -> None:
    make(CONFIGS["qwen3"]).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"model\.attention=flash_attention_2: "):
        load_model(tmp_path, ModelConfig(attention="flash_attention_2"))


def test_only_two_types_of_weights_are_known() -> None:
    with pytest.raises(ValueError, match="dtype is float16"):
        ModelConfig(dtype="float16")
