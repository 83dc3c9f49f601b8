"""A larger model that says what a small one says: for measurements that need both episodes and parameters.

Random weights play no episode. Here the small model's weights stand in the corner of larger ones, whose other parts are
random where nothing reads what they give, and zero where they would be added to what the small model computes. The
hidden state is the small one's with zeros behind it; norms, which divide by the root of the mean square, are scaled for
its length.
"""

from pathlib import Path
from typing import Any

import torch

SIZES = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 10}
HEADS = 4
"""Times the small model's heads, of queries and of keys alike: a query head finds its own keys."""


def grow(small: Path, folder: Path) -> int:
    """Writes it, the tokenizer's files included; returns the number of its parameters."""
    from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen3ForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(small)
    tokenizer.save_pretrained(folder)
    source: Any = AutoModelForCausalLM.from_pretrained(small, dtype=torch.float32)
    config = source.config.__class__(**{**source.config.to_dict(), **_sizes(source.config)})
    torch.manual_seed(0)
    target: Any = Qwen3ForCausalLM(config)
    with torch.no_grad():
        _copy(source, target)
    target.generation_config = source.generation_config
    target.save_pretrained(folder)
    return sum(one.numel() for one in target.parameters())


def _sizes(config: Any) -> dict[str, Any]:
    heads = {name: HEADS * getattr(config, name) for name in ("num_attention_heads", "num_key_value_heads")}
    layers = {"layer_types": ["full_attention"] * SIZES["num_hidden_layers"]}
    # The mean square of as much and zeros behind it is smaller, and what is added to it is to be so too.
    epsilon = config.rms_norm_eps * config.hidden_size / SIZES["hidden_size"]
    return {**SIZES, **heads, **layers, "max_window_layers": SIZES["num_hidden_layers"], "rms_norm_eps": epsilon}


def _copy(source: Any, target: Any) -> None:
    width, wide = source.config.hidden_size, target.config.hidden_size
    scale = (width / wide) ** 0.5

    def norm(one: Any, other: Any) -> None:
        other.weight[:width] = one.weight * scale

    def corner(one: Any, other: Any, *, alone: bool) -> None:
        """alone: nothing else is to be in it, as it is added to the hidden state."""
        if alone:
            other.weight.zero_()
        rows, columns = one.weight.shape
        other.weight[:rows, :columns] = one.weight

    corner(source.model.embed_tokens, target.model.embed_tokens, alone=True)
    corner(source.lm_head, target.lm_head, alone=False)
    norm(source.model.norm, target.model.norm)
    for layer in target.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    for one, other in zip(source.model.layers, target.model.layers, strict=False):
        norm(one.input_layernorm, other.input_layernorm)
        norm(one.post_attention_layernorm, other.post_attention_layernorm)
        other.self_attn.q_norm.weight.copy_(one.self_attn.q_norm.weight)
        other.self_attn.k_norm.weight.copy_(one.self_attn.k_norm.weight)
        for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
            corner(getattr(one.self_attn, name), getattr(other.self_attn, name), alone=False)
        for name in ("gate_proj", "up_proj", "down_proj"):
            corner(getattr(one.mlp, name), getattr(other.mlp, name), alone=False)
