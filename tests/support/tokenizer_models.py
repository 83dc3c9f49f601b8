"""Small models with tokenizers and chat templates of the kinds that published models have."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.support.tokenizer_kinds import KINDS, LAYOUTS, write


@dataclass(frozen=True, slots=True)
class Like:
    kind: str
    """In `tokenizer_kinds.KINDS`."""
    layout: str
    """In `tokenizer_kinds.LAYOUTS`."""
    end: str
    """The token that ends a turn."""


MODELS: Mapping[str, Like] = {
    "Llama 2": Like("prepend", "instruction", "</s>"),
    "Mistral": Like("metaspace first", "instruction, tight", "</s>"),
    "Phi-3": Like("prepend, swallowing", "marks alone", "<|end|>"),
    "Gemma": Like("replace", "chat marks", "<|im_end|>"),
}


def make_model_like(name: str, folder: Path) -> Path:
    """The folder of an untrained model, which learns chains of the tiny world in a hundred steps."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    like = MODELS[name]
    tokenizer = KINDS[like.kind]()
    write(tokenizer, folder, LAYOUTS[like.layout])
    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=1024,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id(like.end),
        pad_token_id=0,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder
