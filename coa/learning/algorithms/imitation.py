"""Imitation (supervised fine-tuning): cross-entropy on the tokens of demonstrations.

The imitation loss is part of every algorithm's loss, so that a batch may mix demonstrations and sampled episodes. As
an algorithm of its own, imitation adds nothing to it.
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
    """Divided by the number of all trained tokens, so that imitated and sampled tokens weigh the same."""
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
