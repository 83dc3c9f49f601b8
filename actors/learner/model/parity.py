"""Compares a policy with its model: log-probs by packed rows, as training computes them, with those of the model's own
pass over each sequence alone. The model is its own reference, so no list of families is needed.

A policy takes the first of its ways that agrees. Where none does, the model is refused: it would learn from numbers
that are not its own. A tiny copy of the model, made from its configuration, has windows and rotary embeddings that a
short sequence is beyond; the model itself has its weights, its number type and its kernels. Both are compared.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.learner.attention import BRANCHED
from coa.errors import UserError
from coa.learning.samples import all_trained
from coa.pretrained.fit import causal_class, difference
from coa.pretrained.reading import quiet, reading
from coa.pretrained.shrink import shrunk
from coa.types import Sample, Tokens

if TYPE_CHECKING:
    import transformers

LENGTHS = (5, 21, 11)
"""Tokens of the sequences that are compared. The second is beyond the windows of a tiny copy."""
BOUNDS = {torch.float64: 1e-3, torch.float32: 2e-3, torch.bfloat16: 0.1, torch.float16: 0.03}
"""Nats by which log-probs may differ: each in float32, their mean in narrower types, whose rounding moves single ones
further. Faults are from 5e-3 to 10 nats."""
GRADIENTS = 1e-2
"""Largest difference between gradients of a tiny copy, as a share of the largest number in a parameter's gradient."""
FLOOR = 1e-3
"""Share of the largest number of all gradients below which a gradient is taken for as large: those of biases that have
no effect, such as of attention's keys, are rounding."""
SPREAD, NOISE = 0.3, 0.1
"""Standard deviations of a tiny copy's matrices and of what is added to its saved buffers, and of what is added to its
other parameters: with those that models are initialized with, faults don't show."""


class Way(NamedTuple):
    """How samples go through a model."""

    attention: str
    """Name of the attention that transformers is told to use."""
    packed: bool
    """Whether rows hold several samples; else each goes through the model's own pass over a sequence."""

    def __str__(self) -> str:
        return "samples in packed rows" if self.packed else f"one sample at a time, {self.attention} attention"


def ways_of(attention: str) -> tuple[Way, ...]:
    """The ways to compute with a chosen attention, the fastest first."""
    packed = Way(BRANCHED if attention in ("sdpa", "eager") else attention, packed=True)
    return packed, *(Way(name, packed=False) for name in dict.fromkeys((attention, "eager")))


@dataclass(frozen=True)
class Parity:
    """Result of a comparison."""

    way: Way
    apart: float
    """Nats between the log-probs by that way and those of the plain pass."""
    others: tuple[tuple[Way, float], ...]
    """Faster ways that do not agree, each with its nats; infinite where the model can't compute that way."""
    unused: frozenset[str] = frozenset()
    """Of a tiny copy: names of modules that are not used as linear layers, because the layers around them read their
    weights instead of calling them, or since they compute something else. With * in place of numbers."""

    def __str__(self) -> str:
        others = "".join(f"; {way}: {apart:.2g}" for way, apart in self.others)
        return f"{self.way}: {self.apart:.2g} nats from the model's own pass{others}"


class Comparable(nn.Module):
    """The part of a policy that is compared."""

    model: "transformers.PreTrainedModel"
    ways: tuple[Way, ...]
    masked_tokens: int

    def take(self, way: Way) -> None:
        """Computes by this way from now on."""
        raise NotImplementedError

    def plain(self, token_ids: Tensor) -> Tensor:
        """Log-probs by the model's own pass over a sequence."""
        raise NotImplementedError

    def compared(self, samples: Sequence[Sample], run: nn.Module) -> list[Tensor]:
        """Log-probs of each sample by the policy's way, called as `run`."""
        raise NotImplementedError


def settle(policy: Comparable, run: nn.Module, worst: Callable[[float], float] = float) -> Parity:
    """Makes the policy compute by the first of its ways that agrees with its model; raises UserError if none does.

    run: calls the policy, by itself or in what shards it, and is collective if that is. worst: the largest of a number
    over all ranks, which must agree.
    """
    kind, sequences = type(policy.model).__name__, sample_sequences(policy.model.config)
    with torch.no_grad():
        with reading(f"{kind}: its own pass over a sequence fails"):
            device = next(policy.model.parameters()).device
            plain = [run(torch.from_numpy(one).long().to(device)) for one in sequences]
        if not all(bool(one.isfinite().all()) for one in plain):
            raise UserError(f"{kind}: log-probs of the model's own pass are not finite")
        others: list[tuple[Way, float]] = []
        for way in policy.ways:
            apart = worst(_apart(policy, way, run, sequences, plain))
            if apart <= BOUNDS[policy.model.dtype]:
                return Parity(way, apart, tuple(others))
            others.append((way, apart))
    way, apart = min(others, key=lambda one: one[1])
    raise UserError(
        f"{kind} can't be trained here: log-probs are {apart:.2g} nats from those of the model's own pass, at best "
        f"({way})"
    )


def sample_sequences(config: "transformers.PretrainedConfig") -> list[Tokens]:
    """The sequences that are compared, the same each time."""
    usual, rng = usual_tokens(config), np.random.default_rng(0)
    return [rng.choice(usual, size).astype(np.int32) for size in LENGTHS]


def usual_tokens(config: "transformers.PretrainedConfig") -> NDArray[np.int64]:
    """The vocabulary without the tokens that the configuration gives a meaning to."""
    text = config.get_text_config()
    trees = [part.to_dict() for part in (config, text)]
    special = [value for tree in trees for name, value in tree.items() if name.endswith(("token_id", "token_index"))]
    flat = [one for value in special for one in (value if isinstance(value, list) else [value]) if one is not None]
    return np.setdiff1d(np.arange(text.vocab_size), flat)


def _apart(policy: Comparable, way: Way, run: nn.Module, sequences: Sequence[Tokens], plain: Sequence[Tensor]) -> float:
    """Nats between the log-probs by a way, in each form that its rows have, and the plain ones; infinite where the
    model can't compute that way."""
    samples = [all_trained(one) for one in sequences]
    usual = policy.masked_tokens
    policy.take(way)
    try:
        with reading(str(way)):
            found: list[float] = []
            for policy.masked_tokens in (usual, 0) if way.packed else (usual,):
                found.append(distance(policy.compared(samples, run), plain, policy.model.dtype))
            return max(found)
    except UserError:
        return float("inf")
    finally:
        policy.masked_tokens = usual


def distance(found: Sequence[Tensor], plain: Sequence[Tensor], dtype: torch.dtype) -> float:
    """Nats: the largest difference in float32, the mean in narrower types; infinite if one is no number."""
    apart = torch.cat([(one - other).abs().double() for one, other in zip(found, plain, strict=True)])
    if not bool(apart.isfinite().all()):
        return float("inf")
    return float(apart.max() if dtype in (torch.float32, torch.float64) else apart.mean())


@dataclass(frozen=True)
class Copied:
    """The model of which a tiny copy is made."""

    described: str
    """The whole configuration, as text."""
    attention: str
    config: "transformers.PretrainedConfig" = field(compare=False)

    @classmethod
    def of(cls, config: "transformers.PretrainedConfig", attention: str) -> "Copied":
        """attention: of the model. Kernels for GPUs are compared with the model itself."""
        described = f"{type(config)} {config.to_json_string(use_diff=False)}"
        return cls(described, "eager" if attention == "eager" else "sdpa", config)


@lru_cache(maxsize=64)
def settled_copy(copied: Copied, make: type[Comparable]) -> Parity | None:
    """How a tiny copy of the model agrees with itself; None if no copy can be made that runs. make: a policy from a
    model. Raises UserError if it does not agree in any way, or its gradients don't."""
    attention, kind = copied.attention, copied.config.model_type
    try:
        with reading("no tiny copy"), quiet():
            model = tiny_copy(copied.config, attention)
            with torch.no_grad():
                model(input_ids=torch.from_numpy(sample_sequences(model.config)[-1]).long()[None], use_cache=False)
    except UserError:
        return None
    policy = make(model, ways=ways_of(attention)).train()
    unused = unlike_linear(policy)
    found = replace(settle(policy, policy), unused=unused)
    name, apart = gradients_apart(policy)
    if apart > GRADIENTS:
        raise UserError(
            f"{kind} can't be trained here: the gradient of {name} differs by {apart:.2g} of its largest "
            f"number from that of the model's own pass ({found.way})"
        )
    return found


def unlike_linear(policy: Comparable) -> frozenset[str]:
    """Modules that the model's own pass does not use as linear layers (`Parity.unused`)."""
    linear: set[str] = set()
    named = list(policy.model.named_modules())

    def note(name: str, module: nn.Module, inputs: tuple[object, ...], output: object) -> None:
        match (*inputs[:1], output, getattr(module, "weight", None)):
            case (Tensor() as given, Tensor() as found, Tensor() as weight) if weight.dim() == 2:
                matrix = weight if isinstance(module, nn.Linear) else weight.T
                if given.shape[-1] == matrix.shape[1] and found.shape == (*given.shape[:-1], len(matrix)):
                    linear.add(numberless(name))

    hooks = [
        module.register_forward_hook(lambda module, inputs, output, name=name: note(name, module, inputs, output))
        for name, module in named
    ]
    with reading(f"{type(policy.model).__name__}: its own pass over a sequence fails"), torch.no_grad():
        for one in sample_sequences(policy.model.config):
            policy(torch.from_numpy(one).long())
    for hook in hooks:
        hook.remove()
    return frozenset(numberless(name) for name, _ in named) - linear


def numberless(name: str) -> str:
    """The name of a module without the numbers of its layer and expert."""
    return re.sub(r"\.\d+(?=\.|$)", ".*", name)


def gradients_apart(policy: Comparable) -> tuple[str, float]:
    """The parameter whose gradient differs most between the policy's way and the plain pass, and by how much, as a
    share of the largest number in that gradient."""
    sequences = sample_sequences(policy.model.config)

    def gradients(total: Tensor) -> dict[str, Tensor]:
        policy.zero_grad()
        total.backward()
        return {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}

    with torch.enable_grad():
        own = gradients(torch.cat([policy.plain(torch.from_numpy(one).long()) for one in sequences]).sum())
        found = gradients(torch.cat(policy.compared([all_trained(one) for one in sequences], policy)).sum())
    nothing = torch.zeros(())
    largest = {name: max(float(one.get(name, nothing).abs().max()) for one in (own, found)) for name in own | found}
    least = FLOOR * max(largest.values())
    apart = {
        name: float((found.get(name, nothing) - own.get(name, nothing)).abs().max()) / max(size, least)
        for name, size in largest.items()
    }
    return max(apart.items(), key=lambda one: one[1])


def tiny_copy(config: "transformers.PretrainedConfig", attention: str) -> "transformers.PreTrainedModel":
    """A model of the same family, of random weights that are the same each time, as transformers loads it; on the CPU,
    in float32."""
    small = shrunk(config)
    kind = causal_class(small)
    with torch.random.fork_rng(devices=()), torch.device("cpu"):
        torch.manual_seed(0)
        model = kind._from_config(small, attn_implementation=attention, dtype=torch.float32)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=SPREAD)
            else:
                parameter.data += torch.randn_like(parameter) * NOISE
        weights = model.state_dict()
        for name, buffer in model.named_buffers():
            if name in weights and buffer.is_floating_point():
                buffer += torch.randn_like(buffer) * SPREAD
        with quiet():
            return loaded(kind, small, weights, attention)


def loaded(
    kind: Any, config: "transformers.PretrainedConfig", weights: dict[str, Tensor], attention: str
) -> "transformers.PreTrainedModel":
    """The model that transformers makes of weights; raises ValueError if they are not all of its weights, or more."""
    model, loading = kind.from_pretrained(
        None,
        config=config,
        state_dict=weights,
        attn_implementation=attention,
        dtype=torch.float32,
        output_loading_info=True,
    )
    if found := difference(loading):
        raise ValueError(found)
    return model
