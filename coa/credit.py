"""Credit: how much better than its group each trajectory did (GRPO, arXiv 2402.03300; DAPO, arXiv 2503.14476)."""

from collections.abc import Sequence

import numpy as np

from coa.types import Credited, Floats, Sample, Scored


def group_relative(rewards: Sequence[float]) -> Floats:
    """(reward - group mean) / (group standard deviation + 1e-6), per trajectory."""
    array = np.asarray(rewards, np.float64)
    return ((array - array.mean()) / (array.std() + 1e-6)).astype(np.float32)


def informative(rewards: Sequence[float]) -> bool:
    """Whether the group says anything about what is better than what (DAPO's dynamic sampling keeps only those)."""
    return max(rewards) > min(rewards)


def credit(group: Sequence[Scored]) -> tuple[Credited, ...]:
    advantages = group_relative([scored.reward for scored in group])
    return tuple(Credited(scored=s, advantage=float(a)) for s, a in zip(group, advantages, strict=True))


def to_reinforce(credited: Credited) -> Sample:
    """A sample to learn from by trial: the advantage on each token that the policy made."""
    trajectory = credited.scored.trajectory
    mask = trajectory.by_policy
    return Sample(
        token_ids=trajectory.token_ids,
        trained=mask,
        imitate=np.zeros(len(mask), np.float32),
        reinforce=np.where(mask, np.float32(credited.advantage), np.float32(0)),
        sampled_logprobs=trajectory.logprobs,
        versions=trajectory.versions,
    )
