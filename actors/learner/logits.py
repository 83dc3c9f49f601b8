"""Log-probs of chosen tokens from hidden states, without all logits in memory at once.

32k tokens of a 152k vocabulary are 19 GiB of float32 logits, and as much again for gradients. A chunk of positions is
projected, reduced to one number each, and freed; its logits are recomputed in the backward pass.

The loop over chunks runs within one call of the output projection, because under ZeRO-3 each call of a module gathers
its weights from all ranks, and ranks have different numbers of chunks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from actors.learner.config import LOGITS_BYTES


class Chosen(NamedTuple):
    """Log-probs and entropies at P chosen tokens; float32, [P] each."""

    logprobs: Tensor
    entropy: Tensor
    """Entropy in nats of the distribution that the token was chosen from; no gradient, and zero unless requested."""


def chosen_logprobs(
    hidden: Tensor,
    chosen: Tensor,
    project: Callable[[Tensor], Tensor],
    *,
    vocabulary: int,
    limit: int = LOGITS_BYTES,
    temperature: float = 1.0,
    entropy: bool = False,
) -> Chosen:
    """Log-probs of token ids [P] from hidden states [P, H], under softmax(logits / temperature). `project`: maps [..,
    H] to logits."""

    def reduce(hidden: Tensor, chosen: Tensor) -> Chosen:
        logits = at_least_float32(project(hidden))
        if temperature != 1.0:
            logits = logits / temperature
        return Chosen(*_Reduced.apply(logits, chosen, entropy, torch.is_grad_enabled()))

    size = max(1, limit // (4 * vocabulary))
    if len(chosen) <= size:
        return reduce(hidden, chosen)
    chunks = zip(hidden.split(size), chosen.split(size), strict=True)
    parts: list[Chosen] = [
        checkpoint(reduce, *chunk, use_reentrant=False, preserve_rng_state=False) for chunk in chunks
    ]
    return Chosen(*(torch.cat(column) for column in zip(*parts, strict=True)))


def at_least_float32(tensor: Tensor) -> Tensor:
    """float64 stays as it is."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


class _Reduced(torch.autograd.Function):
    """Log-probs and entropies of [P, V] logits. The probabilities saved for the backward pass also give the entropy."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, chosen: Tensor, entropy: bool, trained: bool) -> tuple[Tensor, Tensor]:
        total = logits.logsumexp(-1, keepdim=True)
        index = chosen.unsqueeze(-1)
        logprobs = (logits.gather(-1, index) - total).squeeze(-1)
        nats = torch.zeros_like(logprobs)
        if entropy or trained:
            shares = (logits - total).exp_()
            if entropy:
                nats = total.squeeze(-1) - torch.linalg.vecdot(shares, logits)
            ctx.save_for_backward(shares, index)
        ctx.mark_non_differentiable(nats)
        return logprobs, nats

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        shares, index = ctx.saved_tensors
        gradient = gradients[0].unsqueeze(-1)
        return (shares * -gradient).scatter_add_(-1, index, gradient), None, None, None


def reduce_in_place(head: nn.Module, *, vocabulary: int, scaling: Callable[[Tensor], Tensor], limit: int) -> None:
    """Patches an output projection of any type so that it can reduce its own logits.

    head(hidden)                                   logits, as before
    head(hidden, chosen, temperature, entropy)     `Chosen`

    The module and the names of its weights stay the same, so sharding, adapters, saving and publishing are unaffected.
    scaling: what the model does with the values of its projection.
    """
    forward = head.forward

    def project(hidden: Tensor) -> Tensor:
        return scaling(at_least_float32(forward(hidden)))

    def call(
        hidden: Tensor, chosen: Tensor | None = None, temperature: float = 1.0, entropy: bool = False
    ) -> Tensor | Chosen:
        if chosen is None:
            return forward(hidden)
        return chosen_logprobs(
            hidden, chosen, project, vocabulary=vocabulary, limit=limit, temperature=temperature, entropy=entropy
        )

    head.forward = call
