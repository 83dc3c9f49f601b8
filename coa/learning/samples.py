"""Samples: token sequences for training, by RL or by imitation. Only tokens that the policy writes have a weight."""

from collections.abc import Sequence

import numpy as np

from coa.errors import UserError
from coa.learning.algorithms.base import Algorithm
from coa.types import ENVIRONMENT, Floats, Mask, Sample, Scored, Status, Tokens


def to_samples(
    group: Sequence[Scored], algorithm: Algorithm, number: int, *, mask_truncated: bool = False
) -> tuple[Sample, ...]:
    """RL samples from a group's episodes, in order, one for each context; `number` is the group's number in the run.

    mask_truncated: leaves out episodes that ran out of tokens; they still count in the advantages of the others."""
    return tuple(
        Sample(
            token_ids=context.token_ids,
            loss_mask=context.action_mask,
            imitate=np.zeros(len(context.token_ids), np.float32),
            reinforce=np.where(context.action_mask, advantage, np.float32(0)),
            rollout_logprobs=context.logprobs,
            versions=context.versions,
            group=number,
        )
        for scored, advantage in zip(group, advantages_of(group, algorithm), strict=True)
        if is_trained(scored, mask_truncated=mask_truncated)
        for context in scored.contexts
    )


def advantages_of(group: Sequence[Scored], algorithm: Algorithm) -> Floats:
    """[n], a finite advantage for each episode; raises UserError if the algorithm gives anything else."""
    found = np.asarray(algorithm.advantages(group))
    if found.shape == (len(group),) and found.dtype.kind in "iuf":
        with np.errstate(over="ignore"):
            advantages = found.astype(np.float32)
        if np.isfinite(advantages).all():
            return advantages
    rewards = ", ".join(f"{scored.reward:g}" for scored in group)
    raise UserError(
        f"the advantages by {type(algorithm).__name__} are {found.tolist()} at task {group[0].trajectory.task_id}, for "
        f"the rewards {rewards}: expected a finite number for each episode"
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
