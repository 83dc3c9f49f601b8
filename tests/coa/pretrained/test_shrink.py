"""A tiny configuration computes what the large one does, with one layer of each kind."""

from typing import Any

import pytest
from transformers import AutoConfig, Gemma2Config, Gemma4TextConfig, GptOssConfig, Phi3Config, Qwen3Config

from coa.pretrained.shrink import HEADS, KEY_HEADS, ORIGINAL_POSITIONS, WINDOW, shrunk


def test_sizes_shrink_and_what_is_computed_stays() -> None:
    small = shrunk(Gemma2Config(attn_logit_softcapping=33.0, final_logit_softcapping=7.0, query_pre_attn_scalar=99))
    assert (small.attn_logit_softcapping, small.final_logit_softcapping, small.query_pre_attn_scalar) == (33.0, 7.0, 99)
    assert small.layer_types == ["sliding_attention", "full_attention"]
    assert (small.num_hidden_layers, small.sliding_window) == (2, WINDOW)
    assert small.hidden_size * small.intermediate_size < 2000


@pytest.mark.parametrize(("heads", "keys", "expected"), [(32, 8, KEY_HEADS), (32, 32, HEADS), (2, 2, 2), (3, 1, 1)])
def test_keys_are_grouped_where_they_were(heads: int, keys: int, expected: int) -> None:
    small = shrunk(Qwen3Config(num_attention_heads=heads, num_key_value_heads=keys))
    assert (small.num_attention_heads, small.num_key_value_heads) == (min(heads, HEADS), expected)


def test_layers_of_one_kind_are_two() -> None:
    assert shrunk(Qwen3Config(num_hidden_layers=40)).num_hidden_layers == 2


def test_rotary_embeddings_change_within_a_short_sequence() -> None:
    factors = [1.0 + i for i in range(48)]
    rope: dict[str, Any] = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": factors, "long_factor": factors}
    small: Any = shrunk(Phi3Config(rope_parameters=rope, original_max_position_embeddings=4096))
    assert small.rope_parameters["long_factor"] == factors[: small.hidden_size // small.num_attention_heads // 2]
    assert small.original_max_position_embeddings == ORIGINAL_POSITIONS


def test_settings_by_the_number_of_a_layer_follow_it() -> None:
    config = Gemma4TextConfig()
    own = {int(number) for number in config.to_dict()["per_layer_config"]}
    kinds = dict.fromkeys((kind, i in own) for i, kind in enumerate(config.layer_types or ()))
    small = shrunk(config)
    own = {int(number) for number in small.to_dict()["per_layer_config"]}
    assert list(kinds) == [(kind, i in own) for i, kind in enumerate(small.layer_types or ())]


def test_tokens_with_a_meaning_are_in_the_small_vocabulary() -> None:
    small: Any = shrunk(GptOssConfig(eos_token_id=[200002, 199999], pad_token_id=199999))
    assert all(0 <= one < small.vocab_size for one in (*small.eos_token_id, small.pad_token_id))


def test_a_configuration_in_another_is_small_too() -> None:
    small = shrunk(AutoConfig.for_model("gemma3"))
    assert small.get_text_config().num_hidden_layers == 2
    assert small.vision_config.hidden_size < 100
