"""Pieces of losses that several algorithms share; tensors are 1-D, float32, over the trained tokens of a micro-batch.

The clipped surrogate is DAPO's (arXiv 2503.14476) around a proximal policy, with the sampling policy's age corrected
apart from it (decoupled PPO, arXiv 2505.24298):

    surrogate = -weight * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)        at least dual_clip * A where A < 0
    ratio     = exp(logp - proximal)          the step that this batch takes
    weight    = min(exp(proximal - rollout), cap)    how likely the proximal policy finds the token
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 20.0
"""Of a logarithm of a ratio, either way: beyond it exp says nothing more and may overflow."""


@dataclass(frozen=True)
class LossConfig:
    clip_low: float = 0.2
    """How far below 1 a ratio of probabilities counts."""
    clip_high: float = 0.28
    """How far above 1 a ratio of probabilities counts; above `clip_low`, it is DAPO's "clip higher"."""
    dual_clip: float | None = None
    """Largest ratio that counts against a token (dual-clip PPO, arXiv 1912.09729); None is no limit."""
    correction_cap: float = 2.0
    """Largest weight of a token that the sampling policy found less likely than the proximal one does."""

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"loss.dual_clip is {self.dual_clip:g}, expected more than 1 + clip_high")


class Surrogate(NamedTuple):
    """[N] each, N tokens or sequences."""

    loss: "Tensor"
    clipped: "Tensor"
    """Where the ratio was clipped."""


class Correction(NamedTuple):
    weight: "Tensor"
    """Without a gradient."""
    capped: "Tensor"
    """Where the weight is the cap."""


def clipped_surrogate(log_ratio: "Tensor", advantages: "Tensor", config: LossConfig) -> Surrogate:
    """Minus the clipped gain of each token (or sequence)."""
    ratio = log_ratio.clamp(-LARGEST, LARGEST).exp()
    bounded = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    gain = (ratio * advantages).minimum(bounded * advantages)
    clipped = bounded * advantages < ratio * advantages
    if config.dual_clip is not None:
        floor = (config.dual_clip * advantages).where(advantages < 0, -float("inf"))
        clipped = clipped | (gain < floor)
        gain = gain.maximum(floor)
    return Surrogate(-gain, clipped)


def correction(log_ratio: "Tensor", config: LossConfig) -> Correction:
    """`log_ratio`: of the proximal policy to the sampling one."""
    ratio = log_ratio.detach().clamp(-LARGEST, LARGEST).exp()
    return Correction(ratio.clamp(max=config.correction_cap), ratio > config.correction_cap)


def segment_sums(values: "Tensor", segments: "Tensor", samples: int) -> "Tensor":
    """[P] to [samples]."""
    return values.new_zeros(samples).index_add(0, segments, values)


def segment_means(values: "Tensor", segments: "Tensor", samples: int) -> "Tensor":
    """[P] to [samples]; 0 for a sample without a token."""
    counts = segment_sums(values.new_ones(len(values)), segments, samples)
    return segment_sums(values, segments, samples) / counts.clamp(min=1.0)


def reference_divergence(logprobs: "Tensor", reference: "Tensor") -> "Tensor":
    """[P] unbiased, never negative estimates of KL(policy, reference): r - 1 - log r with r = reference / policy
    ("k3" of http://joschu.net/blog/kl-approx.html, as in GRPO, arXiv 2402.03300, equation 4)."""
    log_ratio = (reference - logprobs).clamp(-LARGEST, LARGEST)
    return log_ratio.exp() - 1.0 - log_ratio
