"""Samples: token sequences for training, by RL or by imitation. Only tokens that the policy writes have a weight."""

from collections.abc import Sequence

import numpy as np

from coa.learning.algorithms.base import Algorithm
from coa.types import ENVIRONMENT, Mask, Sample, Scored, Status, Tokens


def to_samples(
    group: Sequence[Scored], algorithm: Algorithm, number: int, *, mask_truncated: bool = False
) -> tuple[Sample, ...]:
    """RL samples from a group's episodes, in order; `number` is the group's number in the run.

    mask_truncated: leaves out episodes that ran out of tokens; they still count in the advantages of the others."""
    return tuple(
        Sample(
            token_ids=scored.trajectory.token_ids,
            loss_mask=scored.trajectory.action_mask,
            imitate=np.zeros(len(scored.trajectory.token_ids), np.float32),
            reinforce=np.where(scored.trajectory.action_mask, advantage, np.float32(0)),
            rollout_logprobs=scored.trajectory.logprobs,
            versions=scored.trajectory.versions,
            group=number,
        )
        for scored, advantage in zip(group, algorithm.advantages(group), strict=True)
        if is_trained(scored, mask_truncated=mask_truncated)
    )


def is_trained(scored: Scored, *, mask_truncated: bool) -> bool:
    """Whether an episode of a kept group is made a sample."""
    return not (mask_truncated and scored.trajectory.status is Status.TRUNCATED)


def to_imitate(token_ids: Tokens, action_mask: Mask, weight: float = 1.0) -> Sample:
    """A sample to imitate, from a demonstration's tokens."""
    zeros = np.zeros(len(token_ids), np.float32)
    return Sample(
        token_ids=token_ids,
        loss_mask=action_mask,
        imitate=np.where(action_mask, np.float32(weight), np.float32(0)),
        reinforce=zeros,
        rollout_logprobs=zeros,
        versions=np.full(len(token_ids), ENVIRONMENT, np.int32),
    )


def all_trained(token_ids: Tokens) -> Sample:
    """A sample whose tokens are all in the loss mask."""
    zeros = np.zeros(len(token_ids), np.float32)
    return Sample(
        token_ids=token_ids,
        loss_mask=np.ones(len(token_ids), np.bool_),
        imitate=zeros,
        reinforce=zeros,
        rollout_logprobs=zeros,
        versions=np.full(len(token_ids), ENVIRONMENT, np.int32),
    )
