"""How large a model is and what of it a GPU holds, from its configuration alone.

Bytes of a rank for each parameter, N of them on R ranks (bfloat16; float32 has 4 instead of 2):

    weights       2 N, with stage 3 2 N / R
    gradients     4 N, from stage 2 on 4 N / R        added up in float32
    optimizer     12 N / R                            float32 weights and two moments

and for a micro-batch with gradient checkpointing one [tokens, hidden] array a layer. It is a floor: what a layer needs
while it runs, and what a device keeps for itself, come on top.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.learner.config import LearnerConfig
from actors.learner.policy import ModelConfig
from coa.errors import UserError

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Architecture:
    """What of a model's configuration decides about memory."""

    parameters: int
    adapted: tuple[tuple[str, int, int], ...]
    """Name of each linear layer, its inputs and its outputs."""
    layers: int
    hidden: int


def hub_name(path: str) -> bool:
    """Whether it may name a model of a hub, `NAME` or `OWNER/NAME`, where no folder has that name."""
    return not Path(path).exists() and not path.startswith((".", "/", "~")) and path.count("/") < 2


def local_configuration(model: ModelConfig) -> Any | None:
    """The configuration of a model that is on this machine, or None: nothing is fetched."""
    if model.path is None:
        return _new(model)
    from huggingface_hub import try_to_load_from_cache
    from transformers import AutoConfig

    folder = Path(model.path)
    if not (folder / "config.json").is_file():
        if not hub_name(model.path):
            return None
        found = try_to_load_from_cache(model.path, "config.json")
        if not isinstance(found, str):
            return None
        folder = Path(found).parent
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError) as error:
        raise UserError(f"{model.path}: no configuration that can be read ({str(error).splitlines()[0]})") from error


def _new(model: ModelConfig) -> Any:
    from transformers import Qwen3Config

    return Qwen3Config(
        vocab_size=model.vocabulary_limit,
        hidden_size=model.hidden_size,
        intermediate_size=model.intermediate_size,
        num_hidden_layers=model.layers,
        num_attention_heads=model.heads,
        num_key_value_heads=model.key_value_heads,
        head_dim=model.head_dim,
        tie_word_embeddings=False,
    )


def architecture(configuration: Any) -> Architecture:
    """Counted on a model without storage, whose embeddings are untied as they are for training."""
    import torch
    from transformers import AutoModelForCausalLM

    text = configuration.get_text_config()
    configuration.tie_word_embeddings = text.tie_word_embeddings = False
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(configuration)
    except ValueError as error:
        raise UserError(f"{configuration.model_type}: no causal language model") from error
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    return Architecture(
        parameters=sum(p.numel() for p in model.parameters()),
        adapted=tuple((name, module.in_features, module.out_features) for name, module in linear),
        layers=text.num_hidden_layers,
        hidden=text.hidden_size,
    )


def trained_parameters(built: Architecture, config: LearnerConfig) -> int:
    if not config.lora.rank:
        return built.parameters
    adapted = [one for one in built.adapted if one[0].rpartition(".")[2] in config.lora.targets]
    return sum(config.lora.rank * (inputs + outputs) for _, inputs, outputs in adapted)


def learner_bytes(built: Architecture, config: LearnerConfig, dtype: str) -> int:
    """Of one rank, on its device; a floor."""
    width = 2 if dtype == "bfloat16" else 4
    n, trained, ranks, stage = built.parameters, trained_parameters(built, config), config.ranks, config.zero_stage
    frozen_and_trained = n + (trained if config.lora.rank else 0)
    weights = 0 if config.offload_parameters else width * frozen_and_trained // (ranks if stage == 3 else 1)
    optimizer = 0 if config.offload_optimizer else 12 * trained // ranks
    gradients = 0 if config.offload_optimizer else 4 * trained // (ranks if stage >= 2 else 1)
    tokens = config.packing.row_tokens * config.packing.rows
    inputs = width * built.layers * tokens * built.hidden if config.gradient_checkpointing else 0
    return weights + optimizer + gradients + inputs


VERSIONS_IN_MEMORY = 3
"""Versions of the weights that a node's shared memory holds at most: the two that are kept, and one being written."""


def shared_memory_bytes(built: Architecture, dtype: str) -> int:
    """Of a node with learner ranks or engines, for published weights alone."""
    return VERSIONS_IN_MEMORY * (2 if dtype == "bfloat16" else 4) * built.parameters


def engine_bytes(built: Architecture, dtype: str, tensor_parallel: int) -> int:
    """Weights on one GPU of an engine; its KV cache takes what is left of its share."""
    return (2 if dtype == "bfloat16" else 4) * built.parameters // tensor_parallel
