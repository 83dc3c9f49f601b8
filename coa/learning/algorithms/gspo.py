"""GSPO (arXiv 2507.18071): the ratio and its clipping are per sequence, as the reward is.

    s_i = exp(mean over its tokens of (logp - proximal))                        equation 7
    loss = -mean over sequences of weight_i * min(s_i A_i, clip(s_i) A_i)       equation 5

Off-policy correction and rejection are per sequence at either level (`correction`, `reject`), by the ratio
exp(mean(proximal - rollout)). A sequence's ratio hardly changes, so its clip range is about a thousandth of that of
tokens (section 5.1 of the paper). With `kl_in: reward` all penalties of a sequence are subtracted from its advantage.

How it fails: a sequence never reaches a clip range meant for tokens, so nothing is clipped, without a warning; the
paper's range, for sequences of thousands of tokens, clips most short sequences (`clip_fraction` shows it). One bad
token in a long episode is averaged away, or causes the whole episode to be clipped. Where the proximal policy is the
engine's (`interpolated` at ages 0 and 1, `sampler`), the mean difference of engine and learner is part of s_i. In
bfloat16 it can be larger than the paper's range, and clips sequences before the policy has moved; the paper's ratio is
the learner's to itself: `proximal: recomputed`, with several updates per batch.
"""

from dataclasses import dataclass, replace

from coa.bounds import AtLeast0
from coa.learning.algorithms.base import SEQUENCES, LossSums, Sum, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import (
    GroupRelative,
    check_clips,
    per_sequence,
    ratios,
    weighed,
)
from coa.learning.losses import clipped_surrogate, correction, ratio_of, segment_sums


@dataclass(frozen=True)
class Gspo(GroupRelative):
    clip_low: AtLeast0 = 3e-4
    clip_high: AtLeast0 = 4e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        check_clips("gspo", self.surrogate, "clip_low and clip_high")

    @property
    def clip_range(self) -> str:
        return f"{self.clip_low:g} / {self.clip_high:g} of a sequence"

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        config = replace(self.surrogate, clip_low=self.clip_low, clip_high=self.clip_high)
        log_ratio, age, mismatch = (per_sequence(one, batch) for one in ratios(batch, self.proximal))
        # The sequence is one action, so each penalty on it counts once.
        penalty = segment_sums(self.penalties(batch), batch.segments, batch.samples)
        advantages = per_sequence(batch.reinforce[batch.sampled], batch) - penalty
        alone = batch.segments.new_tensor(range(batch.samples))
        step = clipped_surrogate(log_ratio, advantages, config)
        weight = correction(age, mismatch, alone, batch.samples, config)
        there = per_sequence(batch.logprobs.new_ones(int(batch.sampled.sum())), batch)
        weight = weight._replace(weight=weight.weight * there)
        sums = LossSums(
            {"policy_loss": Sum((step.loss * weight.weight).sum(), SEQUENCES)},
            {
                "clip_fraction": Sum(step.clipped.sum(), SEQUENCES),
                "ratio_mean": Sum((ratio_of(log_ratio.detach()) * there).sum(), SEQUENCES),
                **weighed(weight, config, SEQUENCES),
            },
        )
        return self.with_divergence(sums, batch)
