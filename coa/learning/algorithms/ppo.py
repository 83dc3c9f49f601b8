"""PPO (arXiv 1707.06347) with a value head: a token's advantage from the values that the ranks have scored.

The reward comes at the last token that the policy sampled; what tools wrote in between is not the policy's and is
skipped, so the value after a token is that at the policy's next one (GAE, arXiv 1506.02438, equation 16):

    delta[t] = reward[t] + gamma * V[t + 1] - V[t]
    A[t]     = delta[t] + gamma * gae_lambda * A[t + 1]
    return   = A + V

Advantages are made to have mean 0 and deviation 1 over the sampled tokens of an update. The value head reads the
policy's hidden states, and its loss trains them too. No group is dropped: a task that is always solved says something
about its value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from coa.learning.advantages import Rewarded
from coa.learning.algorithms.base import (
    SAMPLED,
    TOKENS,
    LossSums,
    Needs,
    Sum,
    TokenBatch,
    TokenTargets,
    Totals,
)
from coa.learning.losses import LossConfig, clipped_surrogate, correction
from coa.types import Floats

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Ppo:
    surrogate: LossConfig = field(default_factory=LossConfig)
    gamma: float = 1.0
    gae_lambda: float = 1.0
    """1 is the return itself less the value; smaller trusts the values of later tokens."""
    value_weight: float = 0.1
    """Of the values' loss beside the policy's."""
    value_clip: float = 0.2
    """How far a value may move from what it was before the batch, for its loss to go on falling."""
    whiten: bool = True
    """Whether advantages are made to have mean 0 and deviation 1."""

    @property
    def needs(self) -> Needs:
        return Needs(values=True)

    def keep(self, group: Sequence[Rewarded]) -> bool:
        return True

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        """The rewards: what they say of a token is known once the ranks have scored it."""
        return np.asarray([episode.reward for episode in group], np.float32)

    def totals(self, targets: TokenTargets) -> Totals:
        advantages = self.gae(targets)[targets.sampled]
        return {"advantages": float(advantages.sum()), "squares": float(advantages.square().sum())}

    def gae(self, targets: TokenTargets) -> "Tensor":
        """[P]; 0 at tokens that are only imitated."""
        sampled, segments = targets.sampled.tolist(), targets.segments.tolist()
        values, rewards = targets.old_values.tolist(), targets.reinforce.tolist()
        found = [0.0] * len(values)
        segment, advantage, following = -1, 0.0, 0.0
        for t in reversed(range(len(values))):
            if not sampled[t]:
                continue
            last = segments[t] != segment
            if last:
                segment, advantage, following = segments[t], 0.0, 0.0
            delta = (rewards[t] if last else 0.0) + self.gamma * following - values[t]
            advantage = delta + self.gamma * self.gae_lambda * advantage
            found[t], following = advantage, values[t]
        return targets.old_values.new_tensor(found)

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        advantages = self.gae(batch)
        returns = (advantages + batch.old_values)[batch.sampled]
        if self.whiten:
            mean = totals["advantages"] / max(totals[SAMPLED], 1.0)
            variance = max(totals["squares"] / max(totals[SAMPLED], 1.0) - mean**2, 0.0)
            advantages = (advantages - mean) / (variance**0.5 + 1e-8)
        log_ratio = (batch.logprobs - batch.proximal_logprobs)[batch.sampled]
        age = (batch.proximal_logprobs - batch.rollout_logprobs)[batch.sampled]
        step = clipped_surrogate(log_ratio, advantages[batch.sampled], self.surrogate)
        weight = correction(age, self.surrogate)
        values, old = batch.values[batch.sampled], batch.old_values[batch.sampled]
        near = old + (values - old).clamp(-self.value_clip, self.value_clip)
        errors = (values - returns).square().maximum((near - returns).square()) / 2
        return LossSums(
            {
                "policy_loss": Sum((step.loss * weight.weight).sum(), TOKENS),
                "value_loss": Sum(self.value_weight * errors.sum(), TOKENS),
            },
            {
                "clip_fraction": Sum(step.clipped.sum(), SAMPLED),
                "ratio_mean": Sum(log_ratio.detach().exp().sum(), SAMPLED),
                "truncated_weight_fraction": Sum(weight.capped.sum(), SAMPLED),
                "value_mean": Sum(values.detach().sum(), SAMPLED),
                "return_mean": Sum(returns.sum(), SAMPLED),
                "value_error": Sum((values.detach() - returns).square().sum(), SAMPLED),
            },
        )
