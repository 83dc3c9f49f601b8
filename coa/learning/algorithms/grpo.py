"""GRPO (arXiv 2402.03300) with DAPO's loss (arXiv 2503.14476, equation 8): clipped surrogate per token, mean over all
tokens of the batch.

    A_i  = (R_i - mean(R)) / (std(R) + 1e-6)                                       within the group
    loss = -sum over tokens of weight * min(r A_i, clip(r, 1 - low, 1 + high) A_i) / tokens

Clip-higher and dual-clip are settings (`rl.learner.loss`). Staleness is corrected by a separate importance weight
(`coa.learning.losses`).

How it fails: dividing by the standard deviation gives groups that are nearly all right or all wrong more weight than
those in between; if `clip_high` is not above `clip_low`, entropy falls until all groups have zero variance.
"""

from dataclasses import dataclass

from coa.learning.algorithms.base import LossSums, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import GroupRelative


@dataclass(frozen=True)
class Grpo(GroupRelative):
    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return self.policy_loss(batch, self.credit(batch))
