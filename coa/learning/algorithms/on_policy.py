"""On-policy distillation: the policy's own tokens, weighted by a larger model with the same tokenizer.

    gap[t] = log teacher(x_t | x_<t) - log policy(x_t | x_<t)        at tokens x_t that the policy sampled

Minus the gap is, in expectation, the reverse KL of policy and teacher at that token, so reinforcing each token by its
gap reduces it. The gap of a token is credited to that token only, as in a per-token KL penalty, not to the tokens
before it (GKD, arXiv 2306.13649, takes the divergence of whole distributions; MiniLLM, arXiv 2306.08543, the sum to the
end). The policy in the gap is the behavior policy: in a stale batch its older log-prob is used, and the learner's
off-policy correction applies to the token as usual. A group whose episodes all failed is as useful as any other.

The algorithm is GRPO except that it keeps all groups; the driver sets the samples' weights before they reach it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from coa.bounds import Above0
from coa.errors import NotFinite
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
    weight: Above0 = 1.0
    """Weight of a token's gap: the teacher's log-prob minus the policy's."""
    reward: float = 0.0
    """Weight of the reward's advantage, which is added to the gaps; 0 ignores the reward."""
    limit: Above0 = 5.0
    """Maximum absolute gap of a token, in nats, so that a token that the teacher excludes does not outweigh a batch."""

    PATHS: ClassVar = ("teacher",)


def gaps(sample: Sample, teacher: Floats, limit: float) -> Floats:
    """[P], the teacher's log-prob minus the behavior policy's. `teacher`: [P] log-probs of the trained tokens. A token
    that the teacher excludes altogether (-inf) has the gap -limit. Raises NotFinite for any other log-prob that is no
    finite number."""
    excluded = np.isneginf(teacher)
    if wrong := int((~np.isfinite(teacher) & ~excluded).sum()):
        raise NotFinite(f"{wrong} of {len(teacher)} log-probs of the teacher are not finite")
    return np.where(excluded, np.float32(-limit), teacher - sample.rollout_logprobs[sample.loss_mask])


def toward_teacher(sample: Sample, teacher: Floats, config: OnPolicyConfig) -> Sample:
    """The sample with `reinforce` replaced by the weighted sum of each token's clipped gap and its advantage."""
    pull = np.clip(gaps(sample, teacher, config.limit), -config.limit, config.limit)
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
