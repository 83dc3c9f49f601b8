"""The steps between a causal language model's decoder and its logits besides the output projection: factors before and
behind it, and a cap. Measured by the model's own forward pass, in which decoder and projection give known numbers,
so that no name of a setting has to be known and no weight is read."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from coa.errors import UserError
from coa.pretrained.reading import reading

if TYPE_CHECKING:
    import transformers

NEAR, FAR = 1e-3, 1e6
"""Values of a projection that a cap leaves as they are, and that it turns into the cap."""
SPREAD = 40.0
"""Values between -SPREAD and SPREAD are compared with what was found."""
TOLERANCE = 1e-3
ROUNDING = 5e-7
"""Relative error of float32 after a few operations."""


class Scaling(NamedTuple):
    """Logits from the values of a projection: cap * tanh(factor * values / cap), or without a cap factor * values."""

    factor: float = 1.0
    cap: float | None = None

    def __call__(self, values: Tensor) -> Tensor:
        scaled = values if self.factor == 1.0 else values * self.factor
        return scaled if self.cap is None else self.cap * torch.tanh(scaled / self.cap)


def decoder_of(model: "transformers.PreTrainedModel") -> nn.Module:
    """The module whose hidden states the output projection takes."""
    return _ends(model)[0]


def head_of(model: "transformers.PreTrainedModel") -> nn.Module:
    """The output projection."""
    return _ends(model)[1]


def _ends(model: "transformers.PreTrainedModel") -> tuple[nn.Module, nn.Module]:
    """Decoder and output projection. Raises UserError for what is no causal language model."""
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    found = [model.get_decoder() if hasattr(model, "get_decoder") else None]
    found += [getattr(model, name, None) for name in ("base_model", "model", "transformer")]
    decoder = next((one for one in found if one is not None and one is not model and one is not head), None)
    if decoder is None or head is None:
        raise UserError(f"{type(model).__name__} has no decoder with an output projection: no causal language model")
    return decoder, head


def scaling_of(model: "transformers.PreTrainedModel") -> Scaling:
    """Raises UserError for a model that does something else with its logits."""
    config, kind = model.config.get_text_config(), type(model).__name__
    values = torch.linspace(-SPREAD, SPREAD, config.vocab_size)
    values[:2] = torch.tensor([NEAR, FAR])
    with reading(f"{kind}: its logits can't be traced"):
        found = _logits(model, values, config.hidden_size)
    factor, last = float(found[0] / NEAR), float(found[1])
    straight = abs(last - factor * FAR) <= TOLERANCE * FAR * abs(factor)
    scaling = Scaling(_plain(factor), None if straight else _plain(last))
    if not torch.allclose(found[2:], scaling(values[2:]), rtol=TOLERANCE, atol=TOLERANCE):
        raise UserError(f"{kind} does more with its logits than to multiply or to cap them, which is not supported")
    return scaling


def _plain(number: float) -> float:
    """The number without the rounding of float32: 0.99999994 is 1."""
    short = float(f"{number:.5g}")
    return short if abs(short - number) < ROUNDING * abs(number) else number


def _logits(model: "transformers.PreTrainedModel", values: Tensor, width: int) -> Tensor:
    """The model's logits [V] where its projection gives `values` [V] for hidden states of 1."""
    device = model.device

    def decoder(*_: object, **__: object) -> _Hidden:
        return _Hidden(torch.ones(1, 2, width, device=device))

    def project(hidden: Tensor, *_: object, **__: object) -> Tensor:
        return hidden.float()[..., :1] * values.to(device)

    ids = torch.zeros(1, 2, dtype=torch.long, device=device)
    with ExitStack() as stack, torch.no_grad():
        for module, forward in ((decoder_of(model), decoder), (head_of(model), project)):
            stack.enter_context(_replaced(module, forward))
        return model(input_ids=ids, use_cache=False).logits[0, -1].float().cpu()


class _Hidden:
    """A decoder's output that has hidden states, and None for everything else."""

    def __init__(self, hidden: Tensor) -> None:
        self.last_hidden_state = hidden

    def __getitem__(self, place: int | slice) -> Tensor | tuple[Tensor, ...]:
        return (self.last_hidden_state,)[place]

    def __getattr__(self, name: str) -> None:
        return None


@contextmanager
def _replaced(module: nn.Module, forward: Callable[..., object]) -> Iterator[None]:
    before = module.__dict__.get("forward")
    module.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del module.__dict__["forward"]
        else:
            module.__dict__["forward"] = before
