"""Names of a model's tensors as the hub's files have them. transformers renames tensors where it loads a model, and
puts the matrices of experts into one tensor; `save_pretrained` turns that back, and vLLM reads what it writes.

Only what needs no moving of elements is turned back: a tensor is another's, or one of the pieces in which another lies
one behind the other. For all else the model keeps its own names, which plain transformers loads as well.
"""

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actors.learner.lora import Source, sources
from actors.weights.parts import shape_of
from coa.pretrained.reading import reading

if TYPE_CHECKING:
    import transformers

TRACED = 12
"""Most elements of a dimension behind the first that are traced: divisible by the numbers of parts that are usual."""
Pieces = tuple[tuple[str, tuple[int, ...]], ...]


def written_sources(model: "transformers.PreTrainedModel") -> list[Source]:
    """Every weight and saved buffer of the merged model, as the hub's files have them."""
    found = list(sources(model))
    pieces = pieces_of(model, {one.name: shape_of(one.parameters[0]) for one in found})
    return [replace(one, pieces=pieces.get(one.name, ())) for one in found]


def pieces_of(model: "transformers.PreTrainedModel", shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Pieces]:
    """For weights that have other names in a file: names and shapes there, in the order of their elements. Raises
    UserError if transformers can't turn its names back."""
    numbered, starts = _numbered(shapes)
    with reading("names of tensors"):
        traced = _reverted(model, numbered)
        whole = _reverted(model, {name: torch.empty(shape, device="meta") for name, shape in shapes.items()})
    names, found = list(shapes), dict[str, list[tuple[int, str]]]()
    for name, values in traced.items():
        flat = values.reshape(-1)
        first = int(flat[0]) if len(flat) else -1
        if torch.equal(flat, torch.arange(first, first + len(flat))):
            found.setdefault(names[bisect_right(starts, first) - 1], []).append((first, name))
    placed = {name: tuple((one, tuple(whole[one].shape)) for _, one in sorted(own)) for name, own in found.items()}
    return {
        name: pieces
        for name, pieces in placed.items()
        if pieces != ((name, shapes[name]),) and sum(prod(shape) for _, shape in pieces) == prod(shapes[name])
    }


def _numbered(shapes: Mapping[str, tuple[int, ...]]) -> tuple[dict[str, Tensor], list[int]]:
    """Small tensors in place of those of a model, whose elements are numbered, and the first number of each. The first
    dimension of three, of experts, keeps its length."""
    small = {
        name: tuple(size if len(shape) > 2 and i == 0 else min(size, TRACED) for i, size in enumerate(shape))
        for name, shape in shapes.items()
    }
    ends = list(accumulate(prod(shape) for shape in small.values()))
    starts = [0, *ends[:-1]]
    return {
        name: torch.arange(start, end).reshape(shape)
        for (name, shape), start, end in zip(small.items(), starts, ends, strict=True)
    }, starts


def _reverted(model: "transformers.PreTrainedModel", tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    from transformers.core_model_loading import revert_weight_conversion

    return revert_weight_conversion(model, dict(tensors))
