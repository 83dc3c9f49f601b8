"""Loads a pretrained model as it is trained: as it came, without dropout."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from actors.learner.config import ModelConfig
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
