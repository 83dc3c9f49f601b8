"""Samples to imitate: the weight is on each token that the policy is to say, and on no other."""

import numpy as np

from coa.types import Sample, Trajectory


def to_imitate(demonstration: Trajectory) -> Sample:
    mask = demonstration.by_policy
    return Sample(
        token_ids=demonstration.token_ids,
        trained=mask,
        imitate=mask.astype(np.float32),
        reinforce=np.zeros(len(mask), np.float32),
        sampled_logprobs=demonstration.logprobs,
        versions=demonstration.versions,
    )
