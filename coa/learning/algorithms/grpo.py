"""GRPO (arXiv 2402.03300) with DAPO's loss (arXiv 2503.14476): clipped surrogate per token, mean over all tokens.

Clip-higher and the second clip are settings (`rl.learner.loss`). The age of the sampling policy is corrected apart from
the step that the batch takes (`coa.learning.losses`).
"""

from dataclasses import dataclass

from coa.learning.algorithms.base import REINFORCED, TOKENS, GroupRelative, LossSums, Needs, Sum, TokenBatch, Totals
from coa.learning.losses import clipped_surrogate, correction, reference_divergence


@dataclass(frozen=True)
class Grpo(GroupRelative):
    kl_weight: float = 0.0
    """Of the divergence from the model that the stage began with, per token; 0 needs no such model."""

    @property
    def needs(self) -> Needs:
        return Needs(group=2, reference=self.kl_weight > 0)

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        reinforced = batch.reinforce != 0
        # Where nothing is reinforced, `rollout_logprobs` means nothing: keep it out of exp, whose overflow would give
        # NaN gradients.
        log_ratio = (batch.logprobs - batch.proximal_logprobs).where(reinforced, 0.0)
        age = (batch.proximal_logprobs - batch.rollout_logprobs).where(reinforced, 0.0)
        step, weight = clipped_surrogate(log_ratio, batch.reinforce, self.surrogate), correction(age, self.surrogate)
        terms = {"policy_loss": Sum((step.loss * weight.weight).sum(), TOKENS)}
        metrics = {
            "clip_fraction": Sum(step.clipped.sum(), TOKENS),
            "ratio_mean": Sum((log_ratio.detach().exp() * reinforced).sum(), REINFORCED),
            "truncated_weight_fraction": Sum(weight.capped.sum(), REINFORCED),
            "correction_weight": Sum((weight.weight * reinforced).sum(), REINFORCED),
        }
        if self.kl_weight > 0:
            divergence = reference_divergence(batch.logprobs, batch.reference_logprobs)[batch.sampled].sum()
            terms["reference_loss"] = Sum(self.kl_weight * divergence, TOKENS)
            metrics["kl_reference"] = Sum(divergence.detach(), TOKENS)
        return LossSums(terms, metrics)
