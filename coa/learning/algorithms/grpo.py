"""GRPO (arXiv 2402.03300): clipped surrogate per token, by default with DAPO's mean over all tokens of the batch
(arXiv 2503.14476, equation 8) in place of the paper's mean over sequences of their tokens' mean (equation 3).

    A_i  = (R_i - mean(R)) / (std(R) + 1e-6)                                       within the group
    loss = -sum over tokens of weight * min(r A_i, clip(r, 1 - low, 1 + high) A_i) / tokens           mean: tokens
    loss = -mean over sequences of sum over its tokens of the same / its tokens                       mean: sequences

Clip-higher and dual-clip are settings (`rl.learner.loss`). Staleness is corrected by a separate importance weight
(`coa.learning.losses`).

How it fails: dividing by the standard deviation gives groups that are nearly all right or nearly all wrong more weight
than those in between; if `clip_high` is not above `clip_low`, entropy falls until all groups have zero variance. With a
mean over sequences, a token of a long wrong answer weighs less than one of a short one, so wrong answers grow longer.
"""

from dataclasses import dataclass
from enum import Enum

from coa.learning.algorithms.base import SEQUENCES, LossSums, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import GroupRelative
from coa.learning.losses import segment_sums


class Mean(Enum):
    """Over what a batch's loss is averaged."""

    tokens = "tokens"
    sequences = "sequences"


@dataclass(frozen=True)
class Grpo(GroupRelative):
    mean: Mean = Mean.tokens
    """Over what the loss is averaged: all tokens of the batch (DAPO), or sequences, each by its tokens' mean (GRPO)."""

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        if self.mean is Mean.tokens:
            return self.policy_loss(batch, self.credit(batch))
        here = batch.segments[batch.sampled]
        lengths = segment_sums(batch.logprobs.new_ones(len(here)), here, batch.samples)
        return self.policy_loss(batch, self.credit(batch), per=SEQUENCES, scale=1 / lengths[here])
