"""LoRA (arXiv 2106.09685): trains small matrices beside frozen weights, W + (alpha / rank) B A.

Only the learner sees adapters: published and saved models have merged weights under the model's own names.

    q_proj.base_layer.weight  frozen  -+
    q_proj.lora_A.weight      trained -+-> q_proj.weight
    q_proj.lora_B.weight      trained -+
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from actors.learner.config import LoraConfig
from coa.errors import UserError

_ADAPTER = "coa"


def add_adapters(model: nn.Module, config: LoraConfig) -> None:
    """Freezes the model and adds adapters, the same on every rank; raises UserError if there is nothing to adapt."""
    try:
        import peft
    except ImportError as error:
        raise UserError("learner.lora.rank is set, and the package peft is not installed: pip install peft") from error
    alpha: Any = config.alpha  # peft's annotation says int, but any number works
    settings = peft.LoraConfig(r=config.rank, lora_alpha=alpha, target_modules=list(config.targets))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        try:
            peft.inject_adapter_in_model(settings, model, adapter_name=_ADAPTER)
        except ValueError as error:
            raise UserError(f"learner.lora.targets: {str(error).splitlines()[0]}") from error
    for name, module in model.named_modules():
        if len(getattr(module, "lora_embedding_A", ())):
            raise UserError(f"learner.lora.targets: {name.rpartition('.')[2]} are embeddings, and not a linear layer")


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
    """The parameters that one weight of the merged model is computed from."""

    name: str
    parameters: tuple[nn.Parameter, ...]
    """The weight itself, followed by A and B if it has an adapter."""
    scale: float = 0.0


def sources(model: nn.Module) -> Iterator[Source]:
    """Every weight of the merged model under the model's own name, in order."""
    adapted: dict[str, tuple[nn.Parameter, nn.Parameter, float]] = {}
    for name, module in model.named_modules():
        if hasattr(module, "lora_A"):
            layer: Any = module
            a, b = layer.lora_A[_ADAPTER].weight, layer.lora_B[_ADAPTER].weight
            adapted[f"{name}.weight"] = (a, b, layer.scaling[_ADAPTER])
    for name, parameter in model.named_parameters():
        if ".lora_A." in name or ".lora_B." in name:
            continue
        name = name.replace(".base_layer.", ".")
        if name in adapted:
            a, b, scale = adapted[name]
            yield Source(name, (parameter, a, b), scale)
        else:
            yield Source(name, (parameter,))
