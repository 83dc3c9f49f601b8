"""An algorithm of one's own: REINFORCE, with the mean reward of a batch as its baseline.

COA_EXTENSIONS=docs.examples.plain_reinforce coa train --recipe tiny run_dir=runs/plain rl.algorithm=plain_reinforce
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coa.learning.advantages import Rewarded
from coa.learning.algorithms import ALGORITHMS
from coa.learning.algorithms.base import SAMPLED, SEQUENCES, LossSums, Needs, Sum, TokenBatch, TokenTargets, Totals
from coa.types import Floats


@dataclass(frozen=True)
class PlainReinforce:
    scale: float = 1.0
    """Of a reward's distance from the baseline: `rl.algorithm_settings.scale` in a recipe."""

    @property
    def needs(self) -> Needs:
        return Needs(proximal=False)

    def keep(self, group: Sequence[Rewarded]) -> bool:
        return True

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        """The rewards: the baseline is known once the ranks have the batch."""
        return np.asarray([episode.reward for episode in group], np.float32)

    def totals(self, targets: TokenTargets) -> Totals:
        """Added up over the batch, on all ranks, before the loss of any micro-batch: here a reward for each token."""
        rewards = targets.reinforce[targets.sampled]
        return {"rewards": float(rewards.sum()), "count": float(len(rewards))}

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        baseline = totals["rewards"] / max(totals["count"], 1.0)
        distance = self.scale * (batch.reinforce - baseline)[batch.sampled]
        gain = (distance * batch.logprobs[batch.sampled]).sum()
        return LossSums({"policy_loss": Sum(-gain, SEQUENCES)}, {"distance": Sum(distance.abs().sum(), SAMPLED)})


ALGORITHMS.register("plain_reinforce", PlainReinforce)
