"""GSPO (arXiv 2507.18071): the ratio and its clipping are per sequence, as the reward is.

    s_i = exp(mean over its tokens of (logp - proximal))                        equation 7
    loss = -mean over sequences of weight_i * min(s_i A_i, clip(s_i) A_i)       equation 5

Off-policy correction and rejection are per sequence at either level (`correction`, `reject`), by the ratio
exp(mean(proximal - rollout)). A sequence's ratio hardly changes, so its clip range is about a thousandth of that of
tokens (section 5.1 of the paper).

How it fails: a sequence never reaches a clip range meant for tokens, so nothing is clipped, without a warning; the
paper's range, for sequences of thousands of tokens, clips most short sequences (`clip_fraction` shows it). One bad
token in a long episode is averaged away, or causes the whole episode to be clipped.
"""

from dataclasses import dataclass, replace

from coa.learning.algorithms.base import SEQUENCES, LossSums, Sum, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import GroupRelative, check_clips, per_sequence, ratios, weighed
from coa.learning.losses import clipped_surrogate, correction


@dataclass(frozen=True)
class Gspo(GroupRelative):
    clip_low: float = 3e-4
    clip_high: float = 4e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_clips("gspo", self.surrogate, "clip_low and clip_high")

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        config = replace(self.surrogate, clip_low=self.clip_low, clip_high=self.clip_high)
        log_ratio, age, mismatch = (per_sequence(one, batch) for one in ratios(batch, self.proximal))
        advantages = per_sequence(self.credit(batch)[batch.sampled], batch)
        alone = batch.segments.new_tensor(range(batch.samples))
        step = clipped_surrogate(log_ratio, advantages, config)
        weight = correction(age, mismatch, alone, batch.samples, config)
        there = per_sequence(batch.logprobs.new_ones(int(batch.sampled.sum())), batch)
        weight = weight._replace(weight=weight.weight * there)
        sums = LossSums(
            {"policy_loss": Sum((step.loss * weight.weight).sum(), SEQUENCES)},
            {
                "clip_fraction": Sum(step.clipped.sum(), SEQUENCES),
                "ratio_mean": Sum((log_ratio.detach().exp() * there).sum(), SEQUENCES),
                **weighed(weight, config, SEQUENCES),
            },
        )
        return self.with_divergence(sums, batch)
