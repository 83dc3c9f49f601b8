"""REINFORCE++ (arXiv 2501.03262): no group and no critic; advantages are normalized over the whole batch.

    A[t] = R - kl_weight * sum of k1 from t on; with `baseline`: (R - group mean) for R
    loss = -mean over tokens of weight * min(r A', clip(r) A')      A' = (A - mean(A)) / std(A) over the batch's tokens

The paper's baseline variant has k2 in the loss: `kl_in: loss, kl_estimator: k2`.

How it fails: without `baseline` a right answer to a hard task is worth no more than one to an easy task, so the policy
learns which tasks are easy before it learns to solve any; if all rewards of a batch are equal, only noise is left, and
normalization amplifies it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coa.learning.advantages import Rewarded, centred
from coa.learning.algorithms.base import LossSums, Needs, TokenBatch, TokenTargets, Totals
from coa.learning.algorithms.policy_gradient import KlIn, PolicyGradient, moments, whitened
from coa.learning.losses import Divergence
from coa.types import Floats


@dataclass(frozen=True)
class ReinforcePp(PolicyGradient):
    kl_in: KlIn = KlIn.reward
    kl_estimator: Divergence = Divergence.k1
    baseline: bool = False
    """Whether the group's mean is subtracted from each reward first: REINFORCE++ with baseline."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, group=2 if self.baseline else 1)

    def keep(self, group: Sequence[Rewarded]) -> bool:
        return True

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        rewards = [episode.reward for episode in group]
        return centred(rewards) if self.baseline else np.asarray(rewards, np.float32)

    def totals(self, targets: TokenTargets) -> Totals:
        return moments(self.credit(targets)[targets.sampled])

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return self.policy_loss(batch, whitened(self.credit(batch), totals))
