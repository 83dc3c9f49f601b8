"""Log-probs of chosen tokens from hidden states, without all logits in memory at once.

32k tokens of a 152k vocabulary are 19 GiB of float32 logits, and again as much of gradients. A chunk of positions is
projected, reduced to one number each, and forgotten; its logits are computed a second time on the way back.

The loop over chunks runs within one call of the output projection. Under ZeRO-3 a call of a module gathers its weights
from all ranks, and ranks have different numbers of chunks.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from actors.learner.config import LOGITS_BYTES


class Chosen(NamedTuple):
    """What is known of P chosen tokens; float32, [P] each."""

    logprobs: Tensor
    entropy: Tensor
    """Nats, of the distribution that the token was chosen from; without a gradient, and zero where nobody asked."""


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
    """[P, H] and [P] token ids to log-probs under softmax(logits / temperature); `project` gives [.., H] its logits."""

    def reduce(hidden: Tensor, chosen: Tensor) -> Chosen:
        logits = project(hidden).float()
        if temperature != 1.0:
            logits = logits / temperature
        return Chosen(*_Reduced.apply(logits, chosen, entropy, torch.is_grad_enabled()))

    size = max(1, limit // (4 * vocabulary))
    if len(chosen) <= size:
        return reduce(hidden, chosen)
    chunks = zip(hidden.split(size), chosen.split(size), strict=True)
    how: dict[str, Any] = {"use_reentrant": False, "preserve_rng_state": False}
    parts: list[Chosen] = [checkpoint(reduce, *chunk, **how) for chunk in chunks]
    return Chosen(*(torch.cat(column) for column in zip(*parts, strict=True)))


class _Reduced(torch.autograd.Function):
    """Log-probs and entropies of [P, V] logits. What the way back needs, the probabilities, gives the entropy too."""

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


def reduce_in_place(head: nn.Module, *, vocabulary: int, softcap: float | None, limit: int) -> None:
    """Teaches an output projection, whatever it is made of, to reduce its own logits.

    head(hidden)                                   logits, as before
    head(hidden, chosen, temperature, entropy)     `Chosen`

    The module and the names of its weights stay as they are: what shards, adapts, saves and publishes knows nothing.
    """
    forward = head.forward

    def project(hidden: Tensor) -> Tensor:
        logits = forward(hidden)
        return logits if softcap is None else softcap * torch.tanh(logits / softcap)

    def call(hidden: Tensor, chosen: Tensor | None = None, temperature: float = 1.0, entropy: bool = False) -> Any:
        if chosen is None:
            return forward(hidden)
        return chosen_logprobs(
            hidden, chosen, project, vocabulary=vocabulary, limit=limit, temperature=temperature, entropy=entropy
        )

    head.forward = call
