"""On-policy distillation: the policy's own tokens, weighed by how likely a larger model of one tokenizer finds them.

    gap[t] = log teacher(x_t | x_<t) - log policy(x_t | x_<t)        at tokens x_t that the policy sampled

Minus the gap is, in expectation, the reverse KL of policy and teacher at that token; reinforcing each token by its gap
brings it down. Each token answers for itself alone, as in a KL penalty per token, and not for those that follow it
(GKD, arXiv 2306.13649, takes the divergence of whole distributions; MiniLLM, arXiv 2306.08543, the sum to the end).
The policy is the one that sampled the token: where a batch is stale, the older policy's log-prob stands in the gap, and
the learner's correction weighs the token as any other. A group of which every episode failed says as much as any
other.

As an algorithm it is GRPO but for the groups that it keeps; the driver has the samples weighed on their way to it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from coa.learning.advantages import Rewarded
from coa.learning.algorithms.base import Needs
from coa.learning.algorithms.grpo import Grpo
from coa.types import Floats, Sample


@dataclass(frozen=True)
class OnPolicyConfig:
    """On-policy distillation: a larger model scores each token that the policy samples."""

    teacher: str | None = None
    """Folder or hub name of the model that scores the tokens; it needs the policy's tokenizer. None for no on-policy
    distillation."""
    weight: float = 1.0
    """Weight of a token's gap: the teacher's log-prob less the policy's."""
    reward: float = 0.0
    """Weight of the reward's advantage, which is added to the gaps; 0 ignores the reward."""
    limit: float = 5.0
    """Largest absolute gap of a token, in nats, so that a token that the teacher excludes does not outweigh a batch."""

    def __post_init__(self) -> None:
        if self.weight <= 0 or self.reward < 0 or self.limit <= 0:
            raise ValueError("rl.on_policy: weight and limit are above 0, reward is not below")


def gaps(sample: Sample, teacher: Floats) -> Floats:
    """`teacher`: [P] log-probs of the trained tokens, in order; returns [P]."""
    return teacher - sample.rollout_logprobs[sample.loss_mask]


def toward_teacher(sample: Sample, teacher: Floats, config: OnPolicyConfig) -> Sample:
    """The sample, whose `reinforce` is the advantage so far, with weights that pull each token to the teacher."""
    pull = np.clip(gaps(sample, teacher), -config.limit, config.limit)
    reinforce = np.zeros_like(sample.reinforce)
    reinforce[sample.loss_mask] = config.weight * pull + config.reward * sample.reinforce[sample.loss_mask]
    return replace(sample, reinforce=reinforce)


@dataclass(frozen=True)
class OnPolicy(Grpo):
    @property
    def needs(self) -> Needs:
        return replace(super().needs, group=1)

    def keep(self, group: Sequence[Rewarded]) -> bool:
        return True
