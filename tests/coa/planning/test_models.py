"""Counted parameters are the published ones, and those that transformers makes."""

from typing import Any

import pytest

from actors.learner.sizes import counted_on_meta
from coa.planning.models import Architecture, architecture_of, published

COUNTS = {
    "HuggingFaceTB/SmolLM2-135M-Instruct": 134_515_008,
    "Qwen/Qwen2.5-0.5B": 494_032_768,
    "Qwen/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "Qwen/Qwen2.5-3B": 3_085_938_688,
    "Qwen/Qwen2.5-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-Coder-7B-Instruct": 7_615_616_512,
    "Qwen/Qwen2.5-14B": 14_770_033_664,
    "Qwen/Qwen2.5-Coder-32B-Instruct": 32_763_876_352,
    "Qwen/Qwen3-0.6B": 596_049_920,
    "Qwen/Qwen3-1.7B-Base": 1_720_574_976,
    "Qwen/Qwen3-4B-Instruct-2507": 4_022_468_096,
    "Qwen/Qwen3-8B": 8_190_735_360,
    "Qwen/Qwen3-14B": 14_768_307_200,
    "Qwen/Qwen3-32B": 32_762_123_264,
}
"""Of the tensors that are on the hub."""


@pytest.mark.parametrize("name", COUNTS)
def test_the_parameters_of_a_published_model_are_those_of_its_tensors(name: str) -> None:
    found = published(name)
    assert found is not None
    built = architecture_of(found)
    assert built is not None
    assert built.parameters == COUNTS[name]


def test_a_model_that_nobody_published_here_is_not_guessed() -> None:
    assert published("Qwen/Qwen2.5-5B") is None
    assert published("somebody/Qwen2.5-7B") is None
    assert architecture_of({"model_type": "mixtral"}) is None


def test_keys_and_values_of_a_token() -> None:
    found = published("Qwen/Qwen2.5-7B")
    built = architecture_of(found or {})
    assert built is not None
    assert (built.kv_heads, built.kv_elements) == (4, 2 * 28 * 4 * 128)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("qwen2", {}),
        ("qwen3", {"head_dim": 24}),
        ("llama", {}),
        ("llama", {"attention_bias": True}),
        ("mistral", {}),
        ("qwen2", {"tie_word_embeddings": True}),
    ],
)
def test_what_is_counted_is_what_transformers_makes(kind: str, settings: dict[str, Any]) -> None:
    from transformers import AutoConfig

    sizes = {
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        **settings,
    }
    made = counted_on_meta(AutoConfig.for_model(kind, **sizes))
    found = architecture_of({"model_type": kind, **sizes})
    assert isinstance(found, Architecture)
    assert found == made
