"""Attention over a line of tokens whose slices are on several ranks: DeepSpeed-Ulysses (arXiv 2309.14509).

    each rank has        its slice of the line, all heads      all layers but attention work token by token
      all-to-all   ->    the whole line, its share of heads    the same attention as on a single rank
      all-to-all   ->    its slice of the line, all heads

A rank needs activation memory for its slice only. If the key-value heads can't be divided among the ranks, they are
repeated, as grouped-query attention would do anyway.
"""

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actors.learner.attention import branched_attention
from actors.learner.sequence.groups import SequenceGroup
from actors.learner.sizes import check_sequence_parallel
from coa.errors import UserError
from coa.pretrained.positions import kind_of, rotations

if TYPE_CHECKING:
    import transformers

SHARED = "coa_shared"
"""Name under which transformers knows `shared_attention`. It has no mask function there, so no mask is made for it."""
ATTENTION_LAYERS = {"full_attention", "sliding_attention"}
"""Kinds of layers (`layer_types` of a model's configuration) whose tokens interact only in attention."""
ROTATIONS = {"dynamic", "longrope"}
"""Kinds of rotary embeddings that depend on the maximum position in a call of the model."""


def share(model: "transformers.PreTrainedModel", attention: str, size: int) -> None:
    """Makes a transformers model attend over the slices of `size` ranks, with `attention` for its share of the heads.
    Raises UserError if the model does not support this."""
    from transformers import AttentionInterface

    config = model.config.get_text_config()
    check_sequence_parallel(size, heads=config.num_attention_heads, attention=attention)
    AttentionInterface.register(SHARED, shared_attention)
    model.set_attn_implementation(SHARED)
    if why := next(_hindrances(model, config), None):
        raise UserError(f"learner.sequence_parallel is {size}, and {type(model).__name__} has {why}: expected 1")


def _hindrances(model: "transformers.PreTrainedModel", config: "transformers.PretrainedConfig") -> Iterator[str]:
    if config._attn_implementation != SHARED:
        yield "attention of its own"
    layers: list[str] = getattr(config, "layer_types", None) or []
    if others := set(layers) - ATTENTION_LAYERS:
        yield f"layers of the kind {min(others)}"
    if found := ROTATIONS.intersection(map(kind_of, rotations(config))):
        yield f"rotary embeddings of the kind {min(found)}"
    if any(name.endswith(".sinks") for name, _ in model.named_parameters()):
        yield "attention sinks"


def shared_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sequence: SequenceGroup,
    attention: str,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """Attention over the whole line. Inputs [1, heads, N / S, D] of this rank's slice; returns [1, N / S, heads, D].
    Collective.

    attention: name of the attention function used on the whole line. kwargs: its arguments, for the whole line.
    """
    assert attention_mask is None, "a line has no mask"
    repeats = sequence.size // math.gcd(key.shape[1], sequence.size)
    if repeats > 1:
        key, value = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
    query, key, value = to_heads(sequence, query, key, value)
    found, _ = _attention(attention)(_module_view(module, attention, query, key), query, key, value, None, **kwargs)
    return to_slices(sequence, found), None


def to_heads(sequence: SequenceGroup, *tensors: Tensor) -> tuple[Tensor, ...]:
    """Turns each [1, heads, N / S, D] into [1, heads / S, N, D]; heads and D may differ between tensors. All tensors
    are sent in one collective, whose gradient is one collective too, so that ranks can't run them in different
    orders."""
    parts = [x.reshape(sequence.size, -1) for x in tensors]
    found = sequence.exchanged(torch.cat(parts, dim=1)).split([part.shape[1] for part in parts], dim=1)
    return tuple(_joined(one, x, sequence.size) for one, x in zip(found, tensors, strict=True))


def _joined(part: Tensor, like: Tensor, size: int) -> Tensor:
    _, heads, tokens, width = like.shape
    slices = part.reshape(size, heads // size, tokens, width)
    return slices.transpose(0, 1).reshape(1, heads // size, size * tokens, width)


def to_slices(sequence: SequenceGroup, found: Tensor) -> Tensor:
    """Turns [1, N, heads / S, D] into [1, N / S, heads, D]."""
    _, tokens, heads, width = found.shape
    parts = sequence.exchanged(found.reshape(sequence.size, tokens // sequence.size, heads, width))
    return parts.transpose(0, 1).reshape(1, tokens // sequence.size, sequence.size * heads, width)


def _attention(name: str) -> Callable[..., tuple[Tensor, object]]:
    if name == "sdpa":
        return branched_attention
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    return ALL_ATTENTION_FUNCTIONS[name]


def _module_view(module: torch.nn.Module, attention: str, query: Tensor, key: Tensor) -> SimpleNamespace:
    """The module attributes that attention functions read, for this rank's share of the heads."""
    return SimpleNamespace(
        num_key_value_groups=query.shape[1] // key.shape[1],
        is_causal=getattr(module, "is_causal", True),
        layer_idx=getattr(module, "layer_idx", None),
        config=SimpleNamespace(_attn_implementation=attention),
        modules=module.modules,
    )
