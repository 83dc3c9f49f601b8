"""Records which tensors given to a vLLM model reach a parameter, and which layers get all their elements.

vLLM skips tensors that it has no parameter for, and keeps the old values of a layer that got nothing; at most it logs a
line. Imported in vLLM's processes only.
"""

import functools
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info, make_online_process_loader
from vllm.model_executor.model_loader.reload.meta import SKIP_LOAD_TENSORS
from vllm.model_executor.model_loader.reload.utils import get_tensor_load_numel
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

from actors.weights.manifest import Layout

LoadParameter: TypeAlias = Callable[..., object]
"""A `weight_loader` of vLLM: puts a tensor, or a part of it, into a parameter."""
_DATA = Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]


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

    def load(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Gives the model its weights."""
        with self._copies:
            self._model.load_weights(self._followed(tensors))

    def _followed(self, tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        for name, tensor in tensors:
            self._current = name
            yield name, tensor

    def _noting(self, loader: LoadParameter, parameter: str) -> LoadParameter:
        @functools.wraps(loader)  # vLLM recognises its own loaders by their name, and unwraps them
        def noting(*args: object, **kwargs: object) -> object:
            for value in (*args, *kwargs.values()):
                if isinstance(value, Tensor) and not value.is_meta:
                    self.took[self._name_of(value)] = parameter
            with self._copies.paused():
                return loader(*args, **kwargs)

        return noting

    def _name_of(self, tensor: Tensor) -> str:
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


def later_uses(model: nn.Module) -> set[str]:
    """Names of parameters that are an earlier layer's, which is the one that is loaded: a tied output layer's."""
    seen: set[int] = set()
    found: set[str] = set()
    for prefix, layer in model.named_modules():
        for name, tensor in (get_layerwise_info(layer).kernel_tensors or ({},))[0].items():
            if id(tensor) in seen:
                found.add(f"{prefix}.{name}".removeprefix("."))
            seen.add(id(tensor))
    return found


def _needed(layer: nn.Module, parameter: nn.Parameter) -> int:
    """Number of elements of a parameter that are loaded. Padding rows of an embedding are not."""
    indices = getattr(layer, "shard_indices", None)
    if indices is not None and parameter.dim() == 2:
        return indices.num_org_elements * parameter.shape[1]
    return get_tensor_load_numel(parameter)


class DirectCopies(TorchFunctionMode):
    """While a model loads its weights, a copy into a whole parameter that has no memory is left to a loader.

    A reload gives memory to a layer once loaders were given all elements of its parameters. A model whose own code
    copies into them, as that of gpt-oss does for experts and sinks, would copy into nothing, without a word.
    """

    def __init__(self, model: nn.Module, watched: Callable[[LoadParameter, str], LoadParameter]) -> None:
        """watched: wraps the loader of a parameter, by its name."""
        super().__init__()
        self._paused = False
        self._watched = watched
        self._owners: dict[int, tuple[nn.Module, str, str]] = {}
        self._parameters: dict[int, nn.Parameter] = {}
        self._values: dict[int, tuple[object, int]] = {}
        """Tensors that were read as a parameter's `data`, kept so that their ids stay their own."""
        for prefix, layer in model.named_modules():
            for name, parameter in layer.named_parameters(recurse=False):
                if parameter.is_meta:
                    self._parameters[id(parameter)] = parameter
                    self._owners[id(parameter)] = (layer, name, f"{prefix}.{name}".removeprefix("."))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While a loader runs, whose copies are its own."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: Mapping[str, object] | None = None,
    ) -> object:
        if not self._paused and func is Tensor.copy_ and (parameter := self._parameter(args[0])) is not None:
            self._load(parameter, args[1])
            return args[0]
        result = func(*args, **kwargs or {})
        if func == _DATA and id(args[0]) in self._parameters:
            self._values[id(result)] = (result, id(args[0]))
        return result

    def _parameter(self, tensor: object) -> nn.Parameter | None:
        _, owner = self._values.get(id(tensor), (None, id(tensor)))
        return self._parameters.get(owner)

    def _load(self, parameter: Any, value: object) -> None:
        layer, name, full = self._owners[id(parameter)]
        parameter.weight_loader = default_weight_loader
        parameter.weight_loader = self._watched(make_online_process_loader(layer, name), full)
        parameter.weight_loader(parameter, value)
