"""The learner's one loss. It knows no algorithm: per-token weights say what each token is for.

    loss = ( sum imitate * -logp  +  sum surrogate(logp, reinforce) ) / trained tokens of the whole batch

The surrogate is DAPO's clipped one (arXiv 2503.14476) around a proximal policy, with the sampling policy's age
corrected apart from it, per token (decoupled PPO, arXiv 2505.24298):

    surrogate = -weight * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)        at least dual_clip * A where A < 0
    ratio     = exp(logp - proximal)          the step that this batch takes
    weight    = min(exp(proximal - sampled), cap)    how likely the proximal policy finds the token

All tensors are 1-D over the trained tokens of a micro-batch, float32.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class LossConfig:
    clip_low: float = 0.2
    clip_high: float = 0.28
    dual_clip: float | None = None
    """Largest ratio that counts against a token (dual-clip PPO, arXiv 1912.09729); None is no limit."""
    correction_cap: float = 2.0
    """Largest weight of a token that the sampling policy found less likely than the proximal one does."""

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"loss.dual_clip is {self.dual_clip:g}, expected more than 1 + clip_high")


@dataclass(frozen=True, slots=True)
class LossTerms:
    loss: Tensor
    """Scalar: the sum over these tokens, divided by the batch's count."""
    clipped: Tensor
    """Scalar: tokens whose ratio was clipped."""
    weight_sum: Tensor
    """Scalar: sum of the correction weights over reinforced tokens."""


def compute_loss(
    logprobs: Tensor,
    *,
    proximal: Tensor,
    sampled: Tensor,
    imitate: Tensor,
    reinforce: Tensor,
    count: float,
    config: LossConfig,
) -> LossTerms:
    """`count` is the number of trained tokens in the batch over all micro-batches and ranks."""
    reinforced = reinforce != 0
    # Where nothing is reinforced, `sampled` means nothing: keep it out of exp, whose overflow would give NaN gradients.
    log_ratio = torch.where(reinforced, logprobs - proximal, 0.0).clamp(-20.0, 20.0)
    ratio = log_ratio.exp()
    weight = torch.where(reinforced, proximal - sampled, 0.0).clamp(-20.0, 20.0).exp().clamp(max=config.correction_cap)
    bounded = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    gain = torch.minimum(ratio * reinforce, bounded * reinforce)
    clipped = reinforced & (bounded * reinforce < ratio * reinforce)
    if config.dual_clip is not None:
        floor = torch.where(reinforce < 0, config.dual_clip * reinforce, -torch.inf)
        clipped |= gain < floor
        gain = torch.maximum(gain, floor)
    loss = (-(imitate * logprobs) - gain * weight.detach()).sum() / count
    return LossTerms(loss, clipped.sum(), (weight * reinforced).sum())
