"""RLOO (arXiv 2402.14740, section 3.2; Kool et al. 2019): REINFORCE with a leave-one-out baseline.

    A_i  = R_i - sum over j != i of R_j / (k - 1)                                  within a group of k
    loss = -sum over tokens of weight * min(r A_i, clip(r, 1 - low, 1 + high) A_i) / sequences

A sequence is one action, so its log-prob is the sum over its tokens. The paper does not clip; with one on-policy update
per batch nothing is clipped here either, and the gradient is the paper's, -A_i grad log pi(y_i) / sequences. The paper
has the divergence from the reference in the reward (k1); here each token carries the part from that token on, which is
the same in expectation (`kl_in: reward`).

How it fails: the variance of a sum over tokens grows with length, so long episodes dominate the update; a zero-variance
group has no gradient, and small groups have noisy baselines.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coa.learning.advantages import leave_one_out
from coa.learning.algorithms.base import SEQUENCES, LossSums, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import GroupRelative, KlIn
from coa.learning.losses import Divergence
from coa.types import Floats


@dataclass(frozen=True)
class Rloo(GroupRelative):
    kl_in: KlIn = KlIn.reward
    kl_estimator: Divergence = Divergence.k1

    def compare(self, rewards: Sequence[float]) -> Floats:
        return leave_one_out(rewards)

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return self.policy_loss(batch, self.credit(batch), per=SEQUENCES)
