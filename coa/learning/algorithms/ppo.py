"""PPO (arXiv 1707.06347) with a value head: advantages per token by GAE.

The reward is given at the last token that the policy sampled. Tool output is skipped, so the value after a token is
that at the policy's next token (GAE, arXiv 1506.02438, equation 16):

    delta[t] = reward[t] + gamma * V[t + 1] - V[t]
    A[t]     = delta[t] + gamma * gae_lambda * A[t + 1]
    return   = A + V
    V        is clipped to the range of the batch's rewards
    value_loss = value_weight * max((V' - return)^2, (clip(V', V - value_clip, V + value_clip) - return)^2) / 2

With `whiten`, advantages are normalized to mean 0 and standard deviation 1 over the sampled tokens of a batch. The
value head reads the policy's hidden states; its loss trains the head alone, as a critic of its own would not train the
policy, at the rate `rl.learner.value_head.lr`. No group is dropped: a task that is always solved still trains the
values. With `kl_in: reward` the KL penalty is subtracted from each token's reward.

How it fails: with `gae_lambda` below 1 advantages are only as good as the values, and a new head's values are all 0. If
the head's learning rate is too low, there is no baseline, or with `whiten` only the batch mean. Compare `value_error`
with the variance of the rewards. While the values lag behind rising returns, the mean advantage is above 0, and with
`whiten` the last tokens of successes, whose values are the highest, look bad. A policy that is nearly certain samples
nothing that balances this: `well_formed` falls, and the reward may collapse.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from coa.bounds import AtLeast0, Share
from coa.learning.advantages import Rewarded
from coa.learning.algorithms.base import SAMPLED, TOKENS, LossSums, Needs, Sum, TokenBatch, TokenTargets, Totals
from coa.learning.algorithms.policy_gradient import KlIn, PolicyGradient, moments, whitened
from coa.types import Floats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ppo(PolicyGradient):
    gamma: Share = 1.0
    gae_lambda: Share = 1.0
    """GAE's lambda: with 1 the advantage is the return minus the value; smaller values rely on later tokens' values."""
    value_weight: AtLeast0 = 0.1
    """Weight of the value loss relative to the policy's loss. Both share the norm by which gradients are clipped;
    otherwise AdamW makes the head's steps independent of it."""
    value_clip: AtLeast0 = 0.2
    """Clip range of the value loss: maximum change of a value from before the batch that still lowers the loss."""
    whiten: bool = False
    """Whether advantages are normalized to mean 0 and standard deviation 1."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, values=True)

    def keep(self, group: Sequence[Rewarded]) -> bool:
        return True

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        """The rewards themselves: the ranks compute advantages once they have scored the tokens' values."""
        return np.asarray([episode.reward for episode in group], np.float32)

    def totals(self, targets: TokenTargets) -> Totals:
        return moments(self.gae(targets)[targets.sampled])

    def old_values(self, targets: TokenTargets) -> "Tensor":
        """[P], values before the batch, within the range that returns can have by the batch's rewards."""
        low, high = targets.bounds
        if self.gamma < 1:
            low, high = min(low, 0.0), max(high, 0.0)
        if self.kl_weight > 0 and self.kl_in is KlIn.reward:
            low, high = -inf, inf
        return targets.old_values.clamp(low, high)

    def gae(self, targets: TokenTargets) -> "Tensor":
        """[P], advantages before normalization; 0 at tokens that are only imitated."""
        sampled, segments = targets.sampled.tolist(), targets.segments.tolist()
        values, rewards = self.old_values(targets).tolist(), targets.reinforce.tolist()
        penalties = self.penalties(targets).tolist()
        found = [0.0] * len(values)
        segment, advantage, following = -1, 0.0, 0.0
        for t in reversed(range(len(values))):
            if not sampled[t]:
                continue
            last = segments[t] != segment
            if last:
                segment, advantage, following = segments[t], 0.0, 0.0
            delta = (rewards[t] if last else 0.0) - penalties[t] + self.gamma * following - values[t]
            advantage = delta + self.gamma * self.gae_lambda * advantage
            found[t], following = advantage, values[t]
        return targets.old_values.new_tensor(found)

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        advantages = self.gae(batch)
        returns = (advantages + self.old_values(batch))[batch.sampled]
        sums = self.policy_loss(batch, whitened(advantages, totals) if self.whiten else advantages)
        values, old = batch.values[batch.sampled], batch.old_values[batch.sampled]
        near = old + (values - old).clamp(-self.value_clip, self.value_clip)
        errors = (values - returns).square().maximum((near - returns).square()) / 2
        return LossSums(
            {**sums.terms, "value_loss": Sum(self.value_weight * errors.sum(), TOKENS)},
            {
                **sums.metrics,
                "value_mean": Sum(values.detach().sum(), SAMPLED),
                "return_mean": Sum(returns.sum(), SAMPLED),
                "value_error": Sum((values.detach() - returns).square().sum(), SAMPLED),
            },
        )
