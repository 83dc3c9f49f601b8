"""Samples to imitate: the weight is on each token that the policy is to say, and on no other."""

import numpy as np

from coa.types import ENVIRONMENT, Mask, Sample, Tokens


def to_imitate(token_ids: Tokens, by_policy: Mask, weight: float = 1.0) -> Sample:
    zeros = np.zeros(len(token_ids), np.float32)
    return Sample(
        token_ids=token_ids,
        trained=by_policy,
        imitate=np.where(by_policy, np.float32(weight), np.float32(0)),
        reinforce=zeros,
        sampled_logprobs=zeros,
        versions=np.full(len(token_ids), ENVIRONMENT, np.int32),
    )
