"""Log-probs of chosen tokens from hidden states, without all logits in memory at once.

32k tokens of a 152k vocabulary are 19 GiB of float32 logits, and again as much of gradients. A chunk of positions is
projected, reduced to one number each, and forgotten; its logits are computed a second time on the way back.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

LOGITS_BYTES = 1 << 29
"""Of a chunk's float32 logits. Where all of them are fewer, they are computed once and kept."""


def chosen_logprobs(
    hidden: Tensor, chosen: Tensor, project: Callable[[Tensor], Tensor], *, vocabulary: int, limit: int = LOGITS_BYTES
) -> Tensor:
    """[P, H] and [P] token ids to [P] float32 log-probs; `project` gives [.., H] its logits."""

    def logprobs(hidden: Tensor, chosen: Tensor) -> Tensor:
        logits = project(hidden).float()
        return logits.gather(-1, chosen.unsqueeze(-1)).squeeze(-1) - logits.logsumexp(-1)

    size = max(1, limit // (4 * vocabulary))
    if len(chosen) <= size:
        return logprobs(hidden, chosen)
    chunks = zip(hidden.split(size), chosen.split(size), strict=True)
    return torch.cat([checkpoint(logprobs, *chunk, use_reentrant=False) for chunk in chunks])
