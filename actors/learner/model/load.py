"""A model as it is trained: a new one of the Qwen3 architecture, with random weights, or a pretrained one, as it came,
without dropout."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import Tokenizer
from torch import nn

from actors.learner.config import ModelConfig
from coa.agent.grammar import TAGS, Kind
from coa.agent.tokenizer import END, PAD
from coa.errors import UserError
from coa.pretrained.fit import NO_FIT, causal_class, difference
from coa.pretrained.weights import WITH_ADAPTERS, few

if TYPE_CHECKING:
    import transformers

DROPOUT = re.compile(r".*(dropout|_pdrop|layerdrop).*")
"""Names of the attributes that hold a rate of dropout."""


def load_model(path: Path | str, config: ModelConfig) -> "transformers.PreTrainedModel":
    """Loads a pretrained causal language model and removes dropout; raises UserError if there is no such model, if
    adapters are beside it, and if a tensor of it is missing, is left over or has another shape: transformers would
    train such a tensor from random numbers."""
    from transformers import AutoModelForCausalLM
    from transformers.utils.peft_utils import find_adapter_config_file

    try:
        if find_adapter_config_file(str(path)):
            raise UserError(f"{path}: {WITH_ADAPTERS}")
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(path),
            dtype=getattr(torch, config.dtype),
            attn_implementation=attention_of(path, config.attention),
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except ImportError as error:
        raise UserError(f"model.attention={config.attention}: {str(error).splitlines()[0]}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: no model there ({str(error).splitlines()[0]})") from error
    model, loading = loaded
    if found := difference(loading):
        raise UserError(f"{path}: {NO_FIT}: {found}")
    note_tie(model)
    if several := shared(model):
        raise UserError(
            f"{path}: its parameters {few(several)} have several names, and only one of them would be saved"
        )
    remove_dropout(model)
    return model


def attention_of(path: Path | str, asked: str) -> str:
    """The attention that the model is loaded with: eager in place of sdpa where a model has no other of its own."""
    from transformers import AutoConfig

    if asked != "sdpa":
        return asked
    found = causal_class(AutoConfig.from_pretrained(str(path), trust_remote_code=False))
    return asked if found is None or found._supports_sdpa else "eager"


def attention_in(config: "transformers.PretrainedConfig") -> str:
    """The attention of the model that has this configuration: transformers writes its choice there."""
    found: Any = config._attn_implementation  # annotated as one that may be None, which a model's own never is
    return found


def tied(model: "transformers.PreTrainedModel") -> bool:
    """Whether the output projection is the embeddings' weight."""
    projection = model.get_output_embeddings()
    return projection is not None and projection.weight is model.get_input_embeddings().weight


def note_tie(model: "transformers.PreTrainedModel") -> None:
    """Makes the configuration say whether the output projection is tied. If it ties, and the files hold a projection of
    other values, transformers takes these, and whoever loads the model again would have to find that out."""
    if not tied(model):
        model.config.tie_word_embeddings = model.config.get_text_config().tie_word_embeddings = False


def shared(model: "transformers.PreTrainedModel") -> list[str]:
    """Names of parameters that have more than one, but for a tied output projection's."""
    ends = (model.get_input_embeddings(), model.get_output_embeddings()) if tied(model) else ()
    allowed = {f"{name}.weight" for name, module in model.named_modules() if any(module is end for end in ends)}
    once = {name for name, _ in model.named_parameters()} | allowed
    return sorted(name for name, _ in model.named_parameters(remove_duplicate=False) if name not in once)


def remove_dropout(model: nn.Module) -> None:
    """Disables dropout, so that a token's log-prob is the same in every pass and in the engine that sampled it."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in vars(module).items():
            if isinstance(value, float) and DROPOUT.fullmatch(name):
                setattr(module, name, 0.0)


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
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=ends[0],
            pad_token_id=pad,
            use_cache=False,
        )
    )
    model.generation_config = GenerationConfig(do_sample=False, eos_token_id=ends, pad_token_id=pad)
    return model
