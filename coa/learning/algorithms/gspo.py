"""GSPO (arXiv 2507.18071): the ratio and its clipping belong to the sequence, as the reward does.

    s_i = exp(mean over its tokens of (logp - proximal))                        equation 7
    loss = -mean over sequences of weight_i * min(s_i A_i, clip(s_i) A_i)       equation 5

The age of the sampling policy is corrected per sequence too: weight_i = min(exp(mean(proximal - rollout)), cap).
A ratio of a sequence hardly moves, so its clips are a thousandth of those per token (section 5.1 of the paper).
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coa.learning.algorithms.base import SEQUENCES, GroupRelative, LossSums, Sum, TokenBatch, Totals
from coa.learning.losses import LossConfig, clipped_surrogate, correction, segment_means

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Gspo(GroupRelative):
    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __post_init__(self) -> None:
        if replace(self.surrogate, correction_cap=LossConfig().correction_cap) != LossConfig():
            raise ValueError("gspo clips by rl.algorithm_settings.clip_low and clip_high, not by rl.learner.loss")

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        def per_sequence(values: "Tensor") -> "Tensor":
            return segment_means(values[batch.sampled], batch.segments[batch.sampled], batch.samples)

        advantages = per_sequence(batch.reinforce)
        log_ratio = per_sequence(batch.logprobs - batch.proximal_logprobs)
        age = per_sequence(batch.proximal_logprobs - batch.rollout_logprobs)
        config = replace(self.surrogate, clip_low=self.clip_low, clip_high=self.clip_high)
        step, weight = clipped_surrogate(log_ratio, advantages, config), correction(age, config)
        there = per_sequence(batch.logprobs.new_ones(len(batch.logprobs)))
        return LossSums(
            {"policy_loss": Sum((step.loss * weight.weight).sum(), SEQUENCES)},
            {
                "clip_fraction": Sum(step.clipped.sum(), SEQUENCES),
                "ratio_mean": Sum((log_ratio.detach().exp() * there).sum(), SEQUENCES),
                "truncated_weight_fraction": Sum(weight.capped.sum(), SEQUENCES),
                "correction_weight": Sum((weight.weight * there).sum(), SEQUENCES),
            },
        )
