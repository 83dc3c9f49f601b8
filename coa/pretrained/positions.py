"""How many tokens of context a model has positions for."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from coa.json_object import JsonView

if TYPE_CHECKING:
    import transformers

LIMITS = ("model_max_length", "max_position_embeddings", "max_seq_len", "seq_length")
"""Where a configuration may say it; the first counts, as for vLLM."""
STRETCHING = ("linear", "dynamic")
"""Kinds of rotary embeddings that multiply the number of positions. With the others, the number that the configuration
has counts: Llama's and that of most YaRN models is already multiplied."""


def positions_of(config: "transformers.PreTrainedConfig") -> int | None:
    """The number of tokens that vLLM gives the model of a configuration of text at most; None if it says none."""
    named = next((found for name in LIMITS if (found := getattr(config, name, None))), None)
    if named is None or config.model_type.startswith("gemma3"):  # whose number is already multiplied
        return named
    return int(named * max([1.0, *(_factor(one) for one in rotations(config) if kind_of(one) in STRETCHING)]))


def hint_of(config: "transformers.PreTrainedConfig") -> str:
    """Advice for a model with YaRN that has fewer positions than it was stretched to, as a clause; else empty."""
    for one in rotations(config):
        most = int(_factor(one) * (one.get("original_max_position_embeddings") or 0))
        if kind_of(one) == "yarn" and most > (positions_of(config) or most):
            return f"; for YaRN to reach its {most}, set max_position_embeddings of its config.json to that"
    return ""


def rotations(config: "transformers.PreTrainedConfig") -> list[JsonView]:
    """The rotary embeddings of a configuration, one for each kind of layers if they differ: transformers 4 has them
    under `rope_scaling`, 5 under `rope_parameters`."""
    found = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    return [one for one in (found, *found.values()) if isinstance(one, Mapping)]


def kind_of(rotation: JsonView) -> str:
    return str(rotation.get("rope_type") or rotation.get("type"))


def _factor(rotation: JsonView) -> float:
    return float(rotation.get("factor") or 1.0)
