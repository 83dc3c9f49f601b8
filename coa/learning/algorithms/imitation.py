"""Imitation (supervised fine-tuning): minus the log-prob of what a demonstration says, and nothing else.

It is a part of every algorithm's loss, so that a batch may hold samples to imitate beside those that the policy
sampled; as an algorithm of its own it adds nothing to that.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coa.learning.advantages import Rewarded
from coa.learning.algorithms.base import (
    TOKENS,
    LossSums,
    Needs,
    Sum,
    TokenBatch,
    TokenTargets,
    Totals,
)
from coa.types import Floats


def imitation(batch: TokenBatch) -> Sum:
    """Per trained token of either kind: who imitates one token and reinforces another weighs both alike."""
    return Sum(-(batch.imitate * batch.logprobs).sum(), TOKENS)


@dataclass(frozen=True)
class Imitation:
    @property
    def needs(self) -> Needs:
        return Needs(proximal=False)

    def keep(self, group: Sequence[Rewarded]) -> bool:
        return False

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        return np.zeros(len(group), np.float32)

    def totals(self, targets: TokenTargets) -> Totals:
        return {}

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        return LossSums({})
