"""Parts of losses that several algorithms share; tensors are 1-D, over the trained tokens of a micro-batch.

The clipped surrogate is DAPO's (arXiv 2503.14476) around a proximal policy, with a separate importance weight for the
staleness of the behavior policy (decoupled PPO, arXiv 2505.24298):

    surrogate = -weight * min(ratio * A, clip(ratio, 1 - low, 1 + high) * A)        min(..) >= dual_clip * A if A < 0
    ratio     = exp(logp - proximal)                 current to proximal policy
    weight    = min(exp(proximal - rollout), cap)    proximal to behavior policy
"""

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, NamedTuple

from annotated_types import Ge, Gt, Lt

if TYPE_CHECKING:
    from torch import Tensor

CLIPS = ("clip_low", "clip_high", "dual_clip")
"""Settings of the clip range of a token's ratio."""
LARGEST = 20.0
"""Bound of the absolute value of log-ratios, against overflow of exp."""


class Proximal(Enum):
    """The proximal policy: the policy that an update is clipped around."""

    recomputed = "recomputed"
    """Policy before the batch's first update; one extra forward pass if a batch is several updates. If a batch is one
    update, nothing is ever clipped, and training on stale samples may diverge."""
    interpolated = "interpolated"
    """Interpolation between behavior and current policy by the staleness of each token: no extra pass (AReaL's
    loglinear, A-3PO, arXiv 2512.06547). For staleness d: rollout + (1 - 1 / max(d, 1)) (logp - rollout)."""
    sampler = "sampler"
    """Behavior policy, at any staleness (PPO as published): the importance weight is then 1."""


class Level(Enum):
    """Whether ratios to the behavior policy are taken per token, per sequence, or not at all."""

    none = "none"
    tokens = "tokens"
    sequences = "sequences"


@dataclass(frozen=True)
class LossConfig:
    """Clipping and off-policy correction, for all algorithms (docs/algorithms.md)."""

    clip_low: float = 0.2
    """How far below 1 a token's probability ratio may be before its gradient is cut off (PPO's clip range)."""
    clip_high: float = 0.28
    """How far above 1 a token's probability ratio may be before its gradient is cut off; above `clip_low` it is DAPO's
    clip-higher."""
    dual_clip: float | None = None
    """Maximum ratio of a token with a negative advantage (dual-clip PPO, arXiv 1912.09729); None sets no limit."""
    proximal: Proximal | None = None
    """Proximal policy, around which an update is clipped: recomputed (the policy before the batch), sampler (the
    behavior policy) or interpolated (between the behavior and the current policy). None uses sampler for cispo and
    interpolated for all other algorithms."""
    correction: Level = Level.tokens
    """Truncated importance weights (proximal to behavior policy): from each token's ratio (tokens), from the product of
    ratios over a sequence (sequences), or none; gspo takes a sequence's geometric mean with either. With
    proximal=interpolated, weights of tokens that are at most one version old are 1, and with proximal=sampler all are:
    against differences of engine and learner, take recomputed or `reject`."""
    correction_cap: Annotated[float, Ge(1)] = 2.0
    """Maximum importance weight."""
    reject: Level = Level.none
    """Which tokens get weight 0: tokens whose ratio of the learner's policy before the batch to the behavior policy is
    outside of `reject_below` to `reject_above` (tokens, as in IcePop), all tokens of a sequence whose geometric mean of
    these ratios is outside (sequences), or none. Rejected tokens still count in the denominator."""
    reject_below: Annotated[float, Ge(0), Lt(1)] = 0.5
    """Minimum ratio that is not rejected."""
    reject_above: Annotated[float, Gt(1)] = 2.0
    """Maximum ratio that is not rejected."""

    def __post_init__(self) -> None:
        if self.dual_clip is not None and self.dual_clip <= 1 + self.clip_high:
            raise ValueError(f"dual_clip is {self.dual_clip:g}, expected more than 1 + clip_high")


class Surrogate(NamedTuple):
    """[N] each, N tokens or sequences."""

    loss: "Tensor"
    clipped: "Tensor"
    """Whether the ratio was clipped."""


class Correction(NamedTuple):
    weight: "Tensor"
    """Importance weights, without a gradient."""
    capped: "Tensor"
    """Whether the weight was truncated to the cap."""
    rejected: "Tensor"
    """Whether the weight was set to 0 by rejection."""


def clipped_surrogate(log_ratio: "Tensor", advantages: "Tensor", config: LossConfig) -> Surrogate:
    """Minus the clipped objective of each token (or sequence)."""
    ratio = ratio_of(log_ratio)
    bounded = ratio.clamp(1.0 - config.clip_low, 1.0 + config.clip_high)
    gain = (ratio * advantages).minimum(bounded * advantages)
    clipped = bounded * advantages < ratio * advantages
    if config.dual_clip is not None:
        floor = (config.dual_clip * advantages).where(advantages < 0, -float("inf"))
        clipped = clipped | (gain < floor)
        gain = gain.maximum(floor)
    return Surrogate(-gain, clipped)


def proximal_of(how: Proximal, *, logprobs: "Tensor", before: "Tensor", rollout: "Tensor", ages: "Tensor") -> "Tensor":
    """[N] log-probs of the proximal policy, without a gradient.

    before: log-probs of the policy before the batch. ages: staleness of each token."""
    match how:
        case Proximal.recomputed:
            return before
        case Proximal.sampler:
            return rollout
        case Proximal.interpolated:
            now = logprobs.detach()
            return now - (now - rollout).clamp(-LARGEST, LARGEST) / ages.clamp(min=1)


def correction(
    log_ratio: "Tensor", mismatch: "Tensor", segments: "Tensor", samples: int, config: LossConfig
) -> Correction:
    """Importance weights, [N]. log_ratio: proximal to behavior policy. mismatch: the learner's policy before the batch
    to the behavior policy, which rejection judges whatever the proximal policy is. segments: indices of sequences."""
    own = log_ratio.detach()
    weight, rejected = own.new_ones(len(own)), own.new_zeros(len(own)).bool()  # for Level.none; the cap is at least 1
    if config.correction is Level.tokens:
        weight = ratio_of(own)
    elif config.correction is Level.sequences:
        weight = ratio_of(segment_sums(own, segments, samples)[segments])
    if config.reject is not Level.none:
        judged = mismatch.detach()
        if config.reject is Level.sequences:
            judged = segment_means(judged, segments, samples)[segments]
        ratio = ratio_of(judged)
        rejected = (ratio < config.reject_below) | (ratio > config.reject_above)
    capped = (weight > config.correction_cap) & ~rejected
    return Correction(weight.clamp(max=config.correction_cap).where(~rejected, 0.0), capped, rejected)


def ratio_of(log_ratio: "Tensor") -> "Tensor":
    return log_ratio.clamp(-LARGEST, LARGEST).exp()


def segment_sums(values: "Tensor", segments: "Tensor", samples: int) -> "Tensor":
    """The sum over each sample: [P] to [samples]."""
    return values.new_zeros(samples).index_add(0, segments, values)


def segment_means(values: "Tensor", segments: "Tensor", samples: int) -> "Tensor":
    """The mean over each sample: [P] to [samples]; 0 for a sample without a token."""
    counts = segment_sums(values.new_ones(len(values)), segments, samples)
    return segment_sums(values, segments, samples) / counts.clamp(min=1.0)


def sums_to_go(values: "Tensor", segments: "Tensor", samples: int) -> "Tensor":
    """[P], for each token, the sum from that token to the end of its sample."""

    def backward(values: "Tensor") -> "Tensor":
        return values.flip(0).cumsum(0).flip(0)

    totals = segment_sums(values, segments, samples)
    later = backward(totals) - totals
    return backward(values) - later[segments]


class Divergence(Enum):
    """Estimators of KL(policy, reference) from one token that the policy sampled, with r = reference / policy
    (http://joschu.net/blog/kl-approx.html)."""

    k1 = "k1"
    """-log r: unbiased, of either sign. As a loss its gradient is 0 in expectation."""
    k2 = "k2"
    """(log r)^2 / 2: never negative, biased; as a loss its gradient is that of the divergence."""
    k3 = "k3"
    """r - 1 - log r (GRPO, arXiv 2402.03300, equation 4): never negative, unbiased as a value; as a loss its gradient
    is 1 - r times that of the log-prob, which can be large for a token that is unlikely under the policy."""


def divergence(logprobs: "Tensor", reference: "Tensor", estimator: Divergence = Divergence.k3) -> "Tensor":
    """[P], the estimate at each token."""
    log_ratio = (reference - logprobs).clamp(-LARGEST, LARGEST)
    if estimator is Divergence.k1:
        return -log_ratio
    if estimator is Divergence.k2:
        return log_ratio.square() / 2
    return log_ratio.exp() - 1.0 - log_ratio
