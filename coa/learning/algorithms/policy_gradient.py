"""Base classes of RL algorithms: the surrogate, its off-policy correction, and the divergence from a reference.

    loss = sum over sampled tokens of weight * surrogate(logp - proximal, A)      `coa.learning.losses`
         + kl_weight * divergence(logp, reference)                                kl_in: loss
    A[t] = credit - kl_weight * sum of divergence(rollout, reference) from t on   kl_in: reward

The reference is the stage's initial model: with LoRA the model without its adapters, else a frozen copy that is sharded
as the policy is. In the reward, the divergence is that of the behavior policy and has no gradient; a token's advantage
includes the penalties of that token and of those after it, since it can't change earlier ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from coa.bounds import AtLeast0
from coa.learning.advantages import Rewarded, Spread, group_relative, informative
from coa.learning.algorithms.base import SAMPLED, TOKENS, LossSums, Needs, Sum, TokenBatch, TokenTargets, Totals
from coa.learning.losses import (
    CLIPS,
    Correction,
    Divergence,
    Level,
    LossConfig,
    Proximal,
    Surrogate,
    clipped_surrogate,
    correction,
    divergence,
    proximal_of,
    ratio_of,
    segment_means,
    sums_to_go,
)
from coa.types import Floats

if TYPE_CHECKING:
    from torch import Tensor


class KlIn(Enum):
    """Where the divergence from the reference is applied."""

    loss = "loss"
    reward = "reward"


@dataclass(frozen=True)
class PolicyGradient:
    """Base class with everything except the advantages and the loss."""

    OWN_PROXIMAL: ClassVar[Proximal] = Proximal.interpolated
    """Proximal policy if the recipe sets none."""
    surrogate: LossConfig = field(default_factory=LossConfig)
    kl_weight: AtLeast0 = 0.0
    """Weight of the per-token divergence from the stage's initial model; 0 loads no reference model."""
    kl_in: KlIn = KlIn.loss
    kl_estimator: Divergence = Divergence.k3

    def __post_init__(self) -> None:
        if self.kl_weight > 0 and self.kl_in is KlIn.loss and self.kl_estimator is Divergence.k1:
            raise ValueError("kl_estimator=k1 has zero expected gradient in the loss; use k2 or k3, or kl_in=reward")

    @property
    def clip_range(self) -> str:
        """For a recipe's plan: "0.2 / 0.28", how far below and above 1 a token's ratio may be, or what is clipped
        instead."""
        return f"{self.surrogate.clip_low:g} / {self.surrogate.clip_high:g}"

    @property
    def proximal(self) -> Proximal:
        return self.surrogate.proximal or self.OWN_PROXIMAL

    @property
    def needs(self) -> Needs:
        before = self.proximal is Proximal.recomputed or self.surrogate.reject is not Level.none
        return Needs(proximal=before, reference=self.kl_weight > 0)

    def totals(self, targets: TokenTargets) -> Totals:
        return {}

    def penalties(self, targets: TokenTargets) -> "Tensor":
        """[P], the KL penalty subtracted from the reward at each token; zeros with `kl_in: loss`."""
        found = targets.rollout_logprobs.new_zeros(len(targets.segments))
        if self.kl_weight <= 0 or self.kl_in is KlIn.loss:
            return found
        penalty = self.kl_weight * divergence(targets.rollout_logprobs, targets.reference_logprobs, self.kl_estimator)
        return penalty.where(targets.sampled, 0.0)

    def credit(self, targets: TokenTargets) -> "Tensor":
        """[P], the advantage of each sampled token: its sample's minus the KL penalties from the token on."""
        return targets.reinforce - sums_to_go(self.penalties(targets), targets.segments, targets.samples)

    def policy_loss(
        self, batch: TokenBatch, advantages: "Tensor", per: str = TOKENS, scale: "float | Tensor" = 1.0
    ) -> LossSums:
        """The surrogate per token. advantages: [P]. per: denominator of the policy's loss. scale: factor of all sampled
        tokens, or of each."""
        here, config = batch.sampled, self.surrogate
        log_ratio, age, mismatch = ratios(batch, self.proximal)
        step = self.step(log_ratio, batch.logprobs[here], advantages[here])
        weight = correction(age, mismatch, batch.segments[here], batch.samples, config)
        sums = LossSums(
            {"policy_loss": Sum((scale * step.loss * weight.weight).sum(), per)},
            {
                "clip_fraction": Sum(step.clipped.sum(), TOKENS),
                "ratio_mean": Sum(ratio_of(log_ratio.detach()).sum(), SAMPLED),
                **weighed(weight, config, SAMPLED),
            },
        )
        return self.with_divergence(sums, batch, per, scale)

    def step(self, log_ratio: "Tensor", logprobs: "Tensor", advantages: "Tensor") -> Surrogate:
        """The surrogate of sampled tokens, before the off-policy correction."""
        return clipped_surrogate(log_ratio, advantages, self.surrogate)

    def with_divergence(
        self, sums: LossSums, batch: TokenBatch, per: str = TOKENS, scale: "float | Tensor" = 1.0
    ) -> LossSums:
        """Adds the current policy's divergence from the reference: to the loss (`kl_in: loss`), or as a metric only.
        per, scale: as of `policy_loss`."""
        if self.kl_weight <= 0:
            return sums
        found = divergence(batch.logprobs, batch.reference_logprobs, self.kl_estimator)[batch.sampled]
        terms = {"reference_loss": Sum(self.kl_weight * (scale * found).sum(), per)} if self.kl_in is KlIn.loss else {}
        return LossSums({**sums.terms, **terms}, {**sums.metrics, "kl_reference": Sum(found.detach().sum(), TOKENS)})


def ratios(batch: TokenBatch, around: Proximal) -> "tuple[Tensor, Tensor, Tensor]":
    """Log-ratios of the sampled tokens: current to proximal policy, proximal to behavior policy, and the policy before
    the batch to the behavior policy."""
    # Rollout log-probs of imitated tokens are meaningless: excluded here, before exp could overflow.
    here = batch.sampled
    now, rollout = batch.logprobs[here], batch.rollout_logprobs[here]
    before, ages = batch.proximal_logprobs[here], batch.ages[here]
    proximal = proximal_of(around, logprobs=now, before=before, rollout=rollout, ages=ages)
    return now - proximal, proximal - rollout, before - rollout


def per_sequence(values: "Tensor", batch: TokenBatch) -> "Tensor":
    """[samples], the mean of `values` over each sample's sampled tokens."""
    return segment_means(values, batch.segments[batch.sampled], batch.samples)


def moments(advantages: "Tensor") -> dict[str, float]:
    """The totals that `whitened` needs. advantages: those of sampled tokens."""
    exact = advantages.double()  # rounded sums would give equal advantages a variance above 0
    return {"advantages": float(exact.sum()), "squares": float(exact.square().sum()), "count": float(len(exact))}


def whitened(advantages: "Tensor", totals: Totals) -> "Tensor":
    """[P], normalized to mean 0 and (population) standard deviation 1 over all sampled tokens of the batch: of all its
    updates, on all ranks."""
    count = max(totals["count"], 1.0)
    mean = totals["advantages"] / count
    variance = max(totals["squares"] / count - mean**2, 0.0)
    return ((advantages.double() - mean) / (variance + 1e-8) ** 0.5).to(advantages.dtype)


def weighed(weight: Correction, config: LossConfig, per: str) -> dict[str, Sum]:
    """Metrics of the off-policy correction."""
    found = {
        "truncated_weight_fraction": Sum(weight.capped.sum(), per),
        "correction_weight": Sum(weight.weight.sum(), per),
    }
    if config.reject is not Level.none:
        found["rejected_weight_fraction"] = Sum(weight.rejected.sum(), per)
    return found


def check_clips(name: str, config: LossConfig, own: str) -> None:
    """Raises ValueError if a recipe sets the per-token clip range, which an algorithm with its own would ignore."""
    defaults = {key: getattr(LossConfig(), key) for key in CLIPS}
    if ignored := {key: value for key, value in defaults.items() if getattr(config, key) != value}:
        without = " ".join(
            f"rl.learner.loss.{key}={'null' if value is None else value}" for key, value in ignored.items()
        )
        raise ValueError(f"{name} clips by rl.algorithm_settings.{own}, not by rl.learner.loss: set {without}")


@dataclass(frozen=True)
class GroupRelative(PolicyGradient):
    """Base class with group-relative advantages: everything except the loss."""

    spread: Spread = Spread.grade
    """The value in which the episodes of a group have to differ for the group to be kept."""

    @property
    def needs(self) -> Needs:
        return replace(super().needs, group=2)

    def keep(self, group: Sequence[Rewarded]) -> bool:
        return informative(group, self.spread)

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        """Advantages from the shaped rewards; zeros for a zero-variance group."""
        if not informative(group, self.spread):
            return np.zeros(len(group), np.float32)
        return self.compare([episode.reward for episode in group])

    def compare(self, rewards: Sequence[float]) -> Floats:
        """The advantages of a group's rewards."""
        return group_relative(rewards)
