"""A new model of the Qwen3 architecture, with random weights."""

from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from actors.learner.config import ModelConfig
from coa.agent.grammar import TAGS, Kind
from coa.agent.tokenizer import END, PAD

if TYPE_CHECKING:
    import transformers


def new_model(config: ModelConfig, tokenizer: Tokenizer, *, seed: int) -> "transformers.Qwen3ForCausalLM":
    """A Qwen3 model with random weights and an output projection of its own, for a tokenizer made by
    `coa.agent.tokenizer`. config: with `max_positions`."""
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    assert config.max_positions is not None
    pad = tokenizer.token_to_id(PAD)
    # With these end tokens, generation with the saved model stops after one turn, as in an episode.
    closing = [tag.close for tag in TAGS.values() if tag.kind in (Kind.TOOL, Kind.TERMINAL)]
    found = [tokenizer.token_to_id(mark) for mark in (END, *closing)]
    ends = [number for number in found if number is not None]
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            vocab_size=tokenizer.get_vocab_size(),
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.layers,
            num_attention_heads=config.heads,
            num_key_value_heads=config.key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_positions,
            initializer_range=config.initializer_range,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=ends[0],
            pad_token_id=pad,
            use_cache=False,
        )
    )
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=ends, pad_token_id=pad)
    return model
