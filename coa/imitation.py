"""Samples to imitate: the weight is on each token that the policy is to say, and on no other."""

import numpy as np

from coa.types import Sample, Trajectory


def to_imitate(demonstration: Trajectory, weight: float = 1.0) -> Sample:
    mask = demonstration.by_policy
    return Sample(
        token_ids=demonstration.token_ids,
        trained=mask,
        imitate=np.where(mask, np.float32(weight), np.float32(0)),
        reinforce=np.zeros(len(mask), np.float32),
        sampled_logprobs=demonstration.logprobs,
        versions=demonstration.versions,
    )
