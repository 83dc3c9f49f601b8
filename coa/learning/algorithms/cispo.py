"""CISPO (arXiv 2506.13585, equations 4 and 5): the ratio is clipped as a weight, so every token keeps a gradient.

    loss = -mean over tokens of weight * sg(clip(r, ratio_low, ratio_high)) * A_i * logp      sg: without a gradient

A_i is GRPO's. Tokens that a clipped surrogate drops as soon as they have moved, rare ones at which reasoning turns, go
on being learnt. As in the paper, r is the ratio to the policy that sampled the token, unless the recipe says otherwise.

How it fails: nothing bounds how far a batch moves the policy but the rate, so many updates of one batch or a large rate
run away, which the loss does not show; `kl_rollout` and `entropy` do.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from coa.learning.algorithms.base import LossSums, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import GroupRelative, check_clips
from coa.learning.losses import Proximal, Surrogate, ratio_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cispo(GroupRelative):
    OWN_PROXIMAL: ClassVar[Proximal] = Proximal.sampler
    ratio_low: float = 0.0
    """Least weight of a token; the paper has no lower bound."""
    ratio_high: float = 5.0
    """Largest weight of a token. The paper tunes it, and does not say to what."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_clips("cispo", self.surrogate, "ratio_low and ratio_high")
        if not 0 <= self.ratio_low < self.ratio_high:
            raise ValueError(f"ratio_low and ratio_high are {self.ratio_low:g} and {self.ratio_high:g}: no range")

    def step(self, log_ratio: "Tensor", logprobs: "Tensor", advantages: "Tensor") -> Surrogate:
        ratio = ratio_of(log_ratio.detach())
        bounded = ratio.clamp(self.ratio_low, self.ratio_high)
        return Surrogate(-bounded * advantages * logprobs, bounded != ratio)

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return self.policy_loss(batch, self.credit(batch))
