"""The sizes of a recipe's model, as far as they are known without network access (`coa.planning.memory` turns them into
bytes)."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

from actors.learner.config import ModelConfig
from coa.errors import UserError
from coa.planning.models import Architecture, architecture_of, published

if TYPE_CHECKING:
    import transformers

SHARING = ("sdpa", "flash_attention_2", "flash_attention_3")
"""Attention kernels that support rows shared between ranks."""


def check_sequence_parallel(size: int, *, heads: int | None, attention: str) -> None:
    """Raises UserError if `size` ranks can't share the rows of a model. heads: attention heads of a layer; None if not
    known yet."""
    if size == 1:
        return
    said = f"learner.sequence_parallel is {size}"
    if heads is not None and heads % size:
        raise UserError(f"{said}, expected a divisor of the model's {heads} attention heads")
    if attention not in SHARING:
        raise UserError(f"{said}, and model.attention {attention}: expected one of {', '.join(SHARING)}")


def hub_name(path: str) -> bool:
    """Whether `path` may be a hub model, `NAME` or `OWNER/NAME`, and not a local folder."""
    return not Path(path).exists() and not path.startswith((".", "/", "~")) and path.count("/") < 2


def architecture(model: ModelConfig) -> Architecture | None:
    """Architecture of a new model from the recipe's sizes; else from a `config.json` on this machine, or from the list
    of published models; None if there is neither. Fetches nothing. Raises UserError if the configuration can't be
    read."""
    if model.path is None:
        return _new(model)
    folder = local_folder(model.path)
    if folder is None:
        return architecture_of(known) if (known := published(model.path)) else None
    try:
        found = architecture_of(json.loads((folder / "config.json").read_text(encoding="utf-8")))
        return found or counted_on_meta(configuration_of(folder))
    except (OSError, ValueError, KeyError, TypeError) as error:
        why = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UserError(f"{model.path}: no configuration that can be read ({why})") from error


def local_folder(path: str) -> Path | None:
    """The folder on this machine that has the model's `config.json`; may be in the hub's cache."""
    if (Path(path) / "config.json").is_file():
        return Path(path)
    if not hub_name(path):
        return None
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(path, "config.json")
    return Path(found).parent if isinstance(found, str) else None


def _new(model: ModelConfig) -> Architecture:
    found = architecture_of(
        {
            "model_type": "qwen3",
            "vocab_size": model.vocabulary_limit,
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_hidden_layers": model.layers,
            "num_attention_heads": model.heads,
            "num_key_value_heads": model.key_value_heads,
            "head_dim": model.head_dim,
        }
    )
    assert found is not None
    return found


def configuration_of(folder: Path) -> "transformers.PretrainedConfig":
    from transformers import AutoConfig

    return AutoConfig.from_pretrained(folder, local_files_only=True)


def counted_on_meta(configuration: "transformers.PretrainedConfig") -> Architecture:
    """Counts sizes on a meta-device model, for architectures that `coa.planning.models` does not cover. Raises
    UserError if it is not a causal language model."""
    import torch
    from transformers import AutoModelForCausalLM

    text = configuration.get_text_config()
    try:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(configuration)
    except ValueError as error:
        raise UserError(f"{configuration.model_type}: no causal language model") from error
    linear = [(n, m) for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)]
    head = model.get_output_embeddings()
    kept = sum(module.in_features + module.out_features for _, module in linear if module is not head)
    heads = text.num_attention_heads
    kv_heads = getattr(text, "num_key_value_heads", None) or heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Architecture(
        parameters=sum(p.numel() for p in model.parameters()),
        adapted=tuple((name, module.in_features, module.out_features) for name, module in linear),
        layers=text.num_hidden_layers,
        heads=heads,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        kept=kept // text.num_hidden_layers,
        kv_heads=kv_heads,
        kv_elements=2 * text.num_hidden_layers * kv_heads * size,
    )
