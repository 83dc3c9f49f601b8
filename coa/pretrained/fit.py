"""Compares the tensors of a model's folder with those that its `config.json` describes, as transformers would load
them: names that it converts, splits, merges, ties or ignores are no difference. No weights are read, and no memory is
taken for them."""

import re
from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from coa.errors import UserError
from coa.pretrained.reading import quiet, reading
from coa.pretrained.weights import Stored, few

if TYPE_CHECKING:
    import transformers

HEADS = re.compile(r"(?:.*\.)?(?:v_head|value_head)\..*")
"""Names of the tensors of a value head, which is no part of the language model and which training makes anew."""
BUFFERS = re.compile(
    r"(?:.*\.)?(?:rotary(?:_pos)?(?:_emb)?\.(?:inv_freq|cos_cached|sin_cached)|attn(?:\.attention)?\.(?:masked_)?bias)"
)
"""Names of constants, of positions and of causal masks, that older versions of transformers stored among the weights:
GPT-2, GPT-J and GPT-Neo have them on the hub. No module of theirs has such a parameter."""
NO_FIT = "its weights do not fit its config.json"
NO_SHAPES: Mapping[str, tuple[int, ...]] = {}
_NUMBER = re.compile(r"\.\d+(?=\.)")


def causal_class(config: "transformers.PreTrainedConfig") -> Any:
    """transformers' class of a causal language model with this configuration; None if there is none."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    return MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)


def check_fit(
    folder: str,
    model_class: "type[transformers.PreTrainedModel]",
    config: "transformers.PreTrainedConfig",
    stored: Mapping[str, Stored],
    *,
    heads: bool,
) -> None:
    """Raises UserError, with the first tensors and their shapes, if the stored tensors are not those of the
    configuration's model, a `model_class` of transformers. heads: whether a value head may be there as well."""
    import torch

    meta = {name: torch.empty(one.shape, device="meta") for name, one in stored.items()}
    what = f"{folder}: its tensors can't be made into those of a {model_class.__name__}"
    if odd := unlike_others(stored):
        what += f" ({few(odd)})"
    with reading(what), quiet():
        loaded: Any = model_class.from_pretrained(
            None,
            config=config,
            state_dict=meta,
            device_map="meta",
            attn_implementation="eager",  # no tensor depends on it, and the one of the configuration may not be there
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    model, loading = loaded
    shapes = {name: one.shape for name, one in stored.items()}
    shapes |= {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if found := difference(loading, shapes, heads=heads):
        raise UserError(f"{folder}: {NO_FIT}: {found}")


def difference(
    loading: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]] = NO_SHAPES, *, heads: bool = True
) -> str:
    """Describes what transformers' `output_loading_info` finds wrong; empty if nothing is. shapes: of the model's own
    tensors and of those in the files, as far as they are known."""

    def describe(name: str) -> str:
        return f"{name} {list(shapes[name])}" if name in shapes else name

    missing = [describe(name) for name in sorted(loading["missing_keys"])]
    left = (name for name in sorted(loading["unexpected_keys"]) if not BUFFERS.fullmatch(name))
    unexpected = [describe(name) for name in left if not (heads and HEADS.fullmatch(name))]
    wrong = [f"{name} {list(had)}, not {list(wants)}" for name, had, wants in sorted(loading["mismatched_keys"])]
    parts = ((missing, "missing"), (unexpected, "not expected"), (wrong, "of another shape"))
    return "; ".join(f"{_count(names)} {what}: {few(names)}" for names, what in parts if names)


def unlike_others(stored: Mapping[str, Stored]) -> list[str]:
    """Tensors of another shape than most of those whose names differ from theirs only in numbers."""
    alike: dict[str, list[str]] = {}
    for name in stored:
        alike.setdefault(_NUMBER.sub(".*", name), []).append(name)
    usual = {key: Counter(stored[name].shape for name in names).most_common(1)[0][0] for key, names in alike.items()}
    found = [(name, usual[key]) for key, names in alike.items() for name in names]
    odd = [(name, stored[name].shape, shape) for name, shape in found if stored[name].shape != shape]
    return [f"{name} {list(own)}, not {list(shape)}" for name, own, shape in odd]


def _count(names: list[str]) -> str:
    return "1 tensor is" if len(names) == 1 else f"{len(names)} tensors are"
