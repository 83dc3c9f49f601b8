"""LoRA (arXiv 2106.09685): trains small matrices beside frozen weights, W + (alpha / rank) B A.

Only the learner sees adapters: published and saved models have merged weights under the model's own names.

    q_proj.base_layer.weight  frozen  -+
    q_proj.lora_A.weight      trained -+-> q_proj.weight
    q_proj.lora_B.weight      trained -+

Layers are found by their modules. Experts whose matrices are one tensor each, [experts, ...], get an adapter an expert.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from actors.learner.config import ALL_LINEAR, LoraConfig
from actors.learner.model.head import decoder_of
from actors.learner.model.load import tied
from actors.learner.model.parity import numberless
from coa.errors import UserError

if TYPE_CHECKING:
    import transformers

_ADAPTER = "coa"
FUSED = dict.fromkeys(("gate_proj", "up_proj", "w1", "w3"), "gate_up_proj") | {"w2": "down_proj"}
"""Names of an expert's layers in older files, and those of the tensors that hold them for all experts."""


def add_adapters(model: "transformers.PreTrainedModel", config: LoraConfig, unused: Collection[str] = ()) -> None:
    """Freezes the model and adds adapters, the same on every rank. Raises UserError if a target is no linear layer of
    the decoder, and no output projection. unused: modules that the model does not use as linear layers
    (`actors.learner.model.parity`)."""
    try:
        import peft
    except ImportError as error:
        raise UserError("learner.lora.rank is set, and the package peft is not installed: pip install peft") from error
    modules, parameters = _select(model, config.targets, unused)
    if parameters and any(hasattr(parameter, "ds_id") for parameter in model.parameters()):
        raise UserError("learner.lora: experts are adapted with learner.zero_stage 1 and 2 only, and not with 3")
    alpha: Any = config.alpha  # peft's annotation says int, but any number works
    settings = peft.LoraConfig(
        r=config.rank, lora_alpha=alpha, target_modules=modules, target_parameters=parameters or None
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        # In a module without configuration peft adapts what it is told, and not what it would choose for a family.
        peft.inject_adapter_in_model(settings, nn.ModuleDict({"model": model}), adapter_name=_ADAPTER)


def _select(
    model: "transformers.PreTrainedModel", targets: tuple[str, ...], unused: Collection[str]
) -> tuple[list[str], list[str]]:
    """Full names of the layers, and of the tensors of experts, that targets are. Raises UserError."""
    layers, experts = _layers(model)
    layers = {name: module for name, module in layers.items() if numberless(name) not in unused}
    head = next(name for name, module in layers.items() if module is model.get_output_embeddings())
    known = {_leaf(name) for name in (*layers, *experts)}
    if len(layers) == 1 and not experts:
        raise UserError(f"learner.lora: {type(model).__name__} has no linear layers that can be adapted")
    if targets == (ALL_LINEAR,):
        return [f"model.{name}" for name in layers if name != head], [f"model.{name}" for name in experts]
    embeddings = next(name for name, module in model.named_modules() if module is model.get_input_embeddings())
    if _leaf(embeddings) in targets:
        raise UserError(f"learner.lora.targets: {_leaf(embeddings)} are embeddings, and not a linear layer")
    if missing := sorted(one for one in targets if one not in known and FUSED.get(one) not in known):
        raise UserError(
            f"learner.lora.targets: {', '.join(missing)} not found: {type(model).__name__} has "
            f"{', '.join(sorted(known))}; {ALL_LINEAR} takes all but the output projection"
        )
    fused = {*targets, *(FUSED[one] for one in targets if one in FUSED)}
    if _leaf(head) in targets and tied(model):
        raise UserError(
            f"learner.lora.targets: {_leaf(head)} is tied to the embeddings, which its adapter would change when merged"
        )
    modules = [f"model.{name}" for name in layers if _leaf(name) in targets]
    return modules, [f"model.{name}" for name in experts if _leaf(name) in fused]


def _layers(model: "transformers.PreTrainedModel") -> tuple[dict[str, nn.Module], list[str]]:
    """The linear layers of the decoder and the output projection by their full names, without those of a vision tower;
    and full names of the tensors of experts."""
    from transformers.pytorch_utils import Conv1D

    decoder, head = decoder_of(model), model.get_output_embeddings()
    within = {id(module) for module in (*decoder.modules(), head)}
    modules = [(name, module) for name, module in model.named_modules() if id(module) in within]
    linear: dict[str, nn.Module] = {
        name: module for name, module in modules if isinstance(module, (nn.Linear, Conv1D)) or module is head
    }
    experts = [
        f"{name}.{leaf}"
        for name, module in modules
        if "expert" in name
        for leaf, parameter in module.named_parameters(recurse=False)
        if len(getattr(parameter, "ds_shape", parameter.shape)) == 3
    ]
    return linear, experts


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """Disables the adapters in the body, which leaves the frozen initial model. Its modules still run in the same
    order, which ZeRO-3 relies on."""
    layers: list[Any] = [module for module in model.modules() if hasattr(module, "lora_A")]
    scales = [layer.scaling[_ADAPTER] for layer in layers]
    for layer in layers:
        layer.scaling[_ADAPTER] = 0.0
    try:
        yield
    finally:
        for layer, scale in zip(layers, scales, strict=True):
            layer.scaling[_ADAPTER] = scale


@dataclass(frozen=True, slots=True)
class Source:
    """The tensors that one weight of the merged model is computed from."""

    name: str
    parameters: tuple[Tensor, ...]
    """The weight itself, or a buffer that is saved, followed by A and B if it has an adapter."""
    scale: float = 0.0
    experts: int = 1
    """Number of matrices in the weight, [experts, ...], each with its part of A and B."""
    transposed: bool = False
    """Whether a matrix is [in, out]."""
    pieces: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Names and shapes of the tensors that it is written as, in the order of its elements; empty for its own."""

    def change(self, a: Tensor, b: Tensor, first: int, last: int) -> Tensor:
        """Rows `first` to `last` of B A in float32, of all matrices one below the other. A: [rank * experts, in], B:
        [out, rank * experts], in peft's order."""
        a, b = a.reshape(self.experts, -1, a.shape[1]), b.reshape(len(b), -1, self.experts)
        rows = a.shape[2] if self.transposed else len(b)
        parts: list[Tensor] = []
        for expert in range(first // rows, -(-last // rows)):
            part = slice(max(0, first - expert * rows), min(rows, last - expert * rows))
            one, other = a[expert].float(), b[..., expert].float()
            parts.append(one[:, part].T @ other.T if self.transposed else other[part] @ one)
        return torch.cat(parts)


def sources(model: nn.Module) -> Iterator[Source]:
    """Every weight and every saved buffer of the merged model under the model's own name, in order."""
    adapters = {name: module for name, module in model.named_modules() if hasattr(module, "lora_A")}
    adapted = {id(source.parameters[0]): source for module in adapters.values() for source in _adapted(module)}
    seen: set[int] = set()
    for name, module in model.named_modules():
        if any(name.startswith(f"{wrapper}.lora_") for wrapper in adapters):
            continue
        for leaf, tensor in _own(module):
            if id(tensor) not in seen:
                seen.add(id(tensor))
                known = adapted.get(id(tensor), Source("", (tensor,)))
                yield replace(known, name=f"{_unwrapped(name, adapters)}.{leaf}".removeprefix("."))


def _own(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Parameters of the module itself, and buffers that are saved."""
    yield from module.named_parameters(recurse=False)
    for name, buffer in module.named_buffers(recurse=False):
        if name not in module._non_persistent_buffers_set:
            yield name, buffer


def _adapted(layer: Any) -> Iterator[Source]:
    base = layer.get_base_layer()
    matrices = (layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight)
    leaf = getattr(layer, "parameter_name", "weight")
    experts = getattr(layer, "num_experts", 1)
    transposed = not layer._did_swap_in_out_features if experts > 1 else layer.fan_in_fan_out
    yield Source("", (getattr(base, leaf), *matrices), layer.scaling[_ADAPTER], experts, transposed)


def _unwrapped(name: str, adapters: Collection[str]) -> str:
    """The name that a module has in the model without adapters, whose modules wrap others."""
    parts: list[str] = []
    path = ""
    for part in name.split("."):
        if not (part == "base_layer" and path in adapters):
            parts.append(part)
        path = f"{path}.{part}".removeprefix(".")
    return ".".join(parts)
