"""Dr. GRPO (arXiv 2503.20783, section 3.2): GRPO without dividing by the group's standard deviation and the length.

    A_i  = R_i - mean(R)                                                           within the group
    loss = -sum over tokens of weight * min(r A_i, clip(r, 1 - low, 1 + high) A_i) / (sequences * length)

`length` is the same for every sequence, so each token of a long wrong answer is penalized as much as one of a short
answer.

How it fails: the scale of an update grows with the episodes' lengths. With a `length` far below theirs the gradient is
clipped to `clip_norm` at every step; far above, the imitation loss dominates. Easy and hard tasks have small
advantages.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from coa.bounds import Above0
from coa.learning.advantages import centred
from coa.learning.algorithms.base import SEQUENCES, LossSums, TokenBatch, Totals
from coa.learning.algorithms.policy_gradient import GroupRelative
from coa.types import Floats


@dataclass(frozen=True)
class DrGrpo(GroupRelative):
    length: Above0 = 1024.0
    """Number of tokens by which every sequence's sum is divided; in the paper the maximum generation length."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.length <= 0:
            raise ValueError(f"length is {self.length:g}, expected more than 0")

    def compare(self, rewards: Sequence[float]) -> Floats:
        return centred(rewards)

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return self.policy_loss(batch, self.credit(batch), per=SEQUENCES, scale=1 / self.length)
