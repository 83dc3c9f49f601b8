"""Why an update was skipped: what was not finite in it, in the order in which it is computed.

samples -> log-probs and values -> totals -> loss -> gradient
"""

from collections import Counter
from collections.abc import Mapping
from math import isfinite

import torch

from coa.learning.algorithms.base import LossSums, TokenBatch, Totals

OF_TOKENS = {
    "imitate": "imitation weights",
    "reinforce": "advantages",
    "rollout_logprobs": "log-probs of the engine",
    "reference_logprobs": "log-probs of the reference",
    "proximal_logprobs": "log-probs of the policy",
    "logprobs": "log-probs of the policy",
    "old_values": "values",
    "values": "values",
}
"""Content of each array of a `TokenBatch`, in the order in which they are looked at."""
OF_SAMPLED = ("reinforce", "rollout_logprobs")
"""The arrays that mean nothing at tokens that are only imitated."""

Wrong = Counter[tuple[int, str]]
"""Numbers that are not finite, by their place in the order and their name."""


def wrong_in(tokens: TokenBatch, totals: Totals, losses: LossSums) -> Wrong:
    """Counts the quantities that are not finite in a micro-batch; empty if all are."""
    found: Wrong = Counter()
    for place, (name, count) in enumerate(_not_finite(tokens).items()):
        found[place, OF_TOKENS[name]] += count
    for name, total in totals.items():
        found[len(OF_TOKENS), f"the total {name}"] += not isfinite(total)
    for name, one in losses.terms.items():
        found[len(OF_TOKENS) + 1, f"the loss's term {name}"] += not isfinite(float(one.total.detach()))
    return +found


def _not_finite(tokens: TokenBatch) -> Mapping[str, int]:
    """Counts for each of the arrays, which wait once for the device."""
    arrays = {name: getattr(tokens, name).detach() for name in OF_TOKENS}
    counts = [
        (~array.isfinite() & tokens.sampled if name in OF_SAMPLED else ~array.isfinite()).sum()
        for name, array in arrays.items()
    ]
    return dict(zip(arrays, torch.stack(counts).tolist(), strict=True))


def cause_of(wrong: Wrong) -> str:
    """The first of what was not finite, as a sentence. wrong: of the micro-batches of a skipped update, on all
    ranks."""
    if not wrong:
        return "the gradient is not finite, though the loss is"
    place, name = min(wrong)
    if place < len(OF_TOKENS):
        return f"{wrong[place, name]} {name} are not finite"
    return f"{name} is not finite"
