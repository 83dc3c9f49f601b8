"""Has a reload of vLLM's count what a model copies into its parameters by itself. Imported in vLLM's processes only."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from vllm.model_executor.model_loader.reload.layerwise import make_online_process_loader
from vllm.model_executor.model_loader.weight_utils import default_weight_loader

LoadParameter: TypeAlias = Callable[..., object]
"""A `weight_loader` of vLLM: puts a tensor, or a part of it, into a parameter."""
_DATA = Tensor.data.__get__  # pyright: ignore[reportAttributeAccessIssue]


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
        """What was read as a parameter's `data`, kept so that its id stays its own."""
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
