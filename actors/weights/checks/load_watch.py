"""Records which tensors given to a vLLM model reach a parameter, and which layers get all their elements.

vLLM skips tensors that it has no parameter for, and keeps the old values of a layer that got nothing; at most it logs a
line. Imported in vLLM's processes only.
"""

import functools
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS
from vllm.model_executor.model_loader.reload.utils import get_tensor_load_numel
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from actors.weights.checks.direct_copies import DirectCopies, LoadParameter
from coa.learning.weights import Layout


class LoadWatch:
    """Watches one load; created after `initialize_layerwise_reload`."""

    def __init__(self, model: Any, layout: Layout, data: NDArray[np.uint8]) -> None:
        """`data`: the flattened model that the tensors are views of."""
        self._model, self._layout = model, layout
        self._address = data.ctypes.data
        self._starts = [span.start for span in layout.tensors]
        self._current = ""
        self._lent: list[Any] = []
        """Parameters that have a loader for as long as they are watched."""
        self._shared = later_uses(model)
        self._copies = DirectCopies(model, self._noting)
        self.took: dict[str, str] = {}
        """The parameter that each tensor went into; a tensor that is missing here reached none."""
        for prefix, module in model.named_modules():
            for name, parameter in module.named_parameters(prefix, recurse=False):
                loader = getattr(parameter, "weight_loader", None)
                if loader is None:
                    if parameter.is_meta:
                        continue
                    # What stays in place, such as biases of routers, may have no loader: vLLM takes the default.
                    self._lent.append(parameter)
                    loader = default_weight_loader
                parameter.weight_loader = self._noting(loader, name)

    def load(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Gives the model its weights."""
        with self._copies:
            self._model.load_weights(self._followed(tensors))

    def _followed(self, tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
        for name, tensor in tensors:
            self._current = name
            yield name, tensor

    def _noting(self, loader: LoadParameter, parameter: str) -> LoadParameter:
        @functools.wraps(loader)  # vLLM recognises its own loaders by their name, and unwraps them
        def noting(*args: object, **kwargs: object) -> object:
            for value in (*args, *kwargs.values()):
                if isinstance(value, torch.Tensor) and not value.is_meta:
                    self.took[self._name_of(value)] = parameter
            with self._copies.paused():
                return loader(*args, **kwargs)

        return noting

    def _name_of(self, tensor: torch.Tensor) -> str:
        """Finds the name by address, which also works for a slice of a tensor; a modified copy counts as the tensor
        given last."""
        offset = tensor.data_ptr() - self._address
        if 0 <= offset < self._layout.nbytes and tensor.device.type == "cpu":
            return self._layout.tensors[bisect_right(self._starts, offset) - 1].name
        return self._current

    def close(self) -> None:
        for parameter in self._lent:
            del parameter.weight_loader
        self._lent.clear()

    def short(self) -> list[str]:
        """Layers that did not get all elements of their parameters; call this before the update is finished."""
        found = []
        for name, layer in self._model.named_modules():
            info = get_layerwise_info(layer)
            if not info.can_load() or is_deferred_attention_layer(layer):
                continue
            needed = sum(
                _needed(layer, parameter)
                for own, parameter in layer.named_parameters(name, recurse=False)
                if own not in self._shared and own.rpartition(".")[2] not in SKIP_LOAD_TENSORS
            )
            if info.load_numel < needed:
                found.append(f"{name} ({info.load_numel} of {needed} elements)")
        return found


def later_uses(model: torch.nn.Module) -> set[str]:
    """Names of parameters that are an earlier layer's, which is the one that is loaded: a tied output layer's."""
    seen: set[int] = set()
    found: set[str] = set()
    for prefix, layer in model.named_modules():
        for name, tensor in (get_layerwise_info(layer).kernel_tensors or ({},))[0].items():
            if id(tensor) in seen:
                found.add(f"{prefix}.{name}".removeprefix("."))
            seen.add(id(tensor))
    return found


def _needed(layer: torch.nn.Module, parameter: torch.nn.Parameter) -> int:
    """Number of elements of a parameter that are loaded. Padding rows of an embedding are not."""
    indices = getattr(layer, "shard_indices", None)
    if indices is not None and parameter.dim() == 2:
        return indices.num_org_elements * parameter.shape[1]
    return get_tensor_load_numel(parameter)
