"""CISPO (arXiv 2506.13585, equations 4 and 5): the ratio is clipped as a weight, so every token keeps a gradient.

    loss = -mean over tokens of weight * sg(clip(r, ratio_low, ratio_high)) * A_i * logp      sg: without a gradient

A_i is GRPO's. Rare tokens at which the reasoning changes direction keep a gradient, whereas a clipped surrogate drops
them after a small change. As in the paper, r is the ratio to the behavior policy, unless the recipe says otherwise.

How it fails: only the learning rate bounds how far a batch moves the policy, so many updates per batch or a high
learning rate can diverge; the loss does not show it, `kl_rollout` and `entropy` do.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from coa.bounds import AtLeast0
from coa.learning.algorithms.base import LossSums, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import GroupRelative, check_clips
from coa.learning.losses import Proximal, Surrogate, ratio_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Cispo(GroupRelative):
    OWN_PROXIMAL: ClassVar[Proximal] = Proximal.sampler
    ratio_low: AtLeast0 = 0.0
    """Minimum weight of a token; the paper has no lower bound."""
    ratio_high: AtLeast0 = 5.0
    """Maximum weight of a token. The paper tunes it without giving its value."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_clips("cispo", self.surrogate, "ratio_low and ratio_high")
        if not 0 <= self.ratio_low < self.ratio_high:
            raise ValueError(
                f"ratio_low and ratio_high are {self.ratio_low:g} and {self.ratio_high:g}, expected 0 <= low < high"
            )

    @property
    def clip_range(self) -> str:
        return f"{self.ratio_low:g} to {self.ratio_high:g}, of the weight"

    def step(self, log_ratio: "Tensor", logprobs: "Tensor", advantages: "Tensor") -> Surrogate:
        ratio = ratio_of(log_ratio.detach())
        bounded = ratio.clamp(self.ratio_low, self.ratio_high)
        return Surrogate(-bounded * advantages * logprobs, bounded != ratio)

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return self.policy_loss(batch, self.credit(batch))
