"""Trained tokens by hand, for tests of losses."""

from collections.abc import Sequence

import torch
from torch import Tensor

from coa.learning.algorithms import loss_of, reduced
from coa.learning.algorithms.base import Algorithm, LossSums, TokenTargets, standard_totals, token_batch

Values = Sequence[float] | None
"""None: zeros."""


def targets_of(
    segments: Sequence[int],
    *,
    sampled: Sequence[bool] | None = None,
    imitate: Values = None,
    reinforce: Values = None,
    rollout: Values = None,
    reference: Values = None,
    old_values: Values = None,
) -> TokenTargets:
    """`sampled`: all of them where nothing is said."""

    def of(values: Values) -> Tensor:
        return torch.zeros(len(segments)) if values is None else torch.tensor(values, dtype=torch.float32)

    return TokenTargets(
        segments=torch.tensor(segments, dtype=torch.int64),
        samples=max(segments, default=-1) + 1,
        sampled=torch.tensor([True] * len(segments) if sampled is None else list(sampled)),
        imitate=of(imitate),
        reinforce=of(reinforce),
        rollout_logprobs=of(rollout),
        ages=of(None),
        reference_logprobs=of(reference),
        old_values=of(old_values),
    )


def loss_by(
    algorithm: Algorithm,
    targets: TokenTargets,
    logprobs: Sequence[float],
    *,
    proximal: Values = None,
    values: Values = None,
    totals: dict[str, float] | None = None,
) -> tuple[float, list[float], list[float], LossSums]:
    """Loss, gradients by log-prob and by value, and the sums. `proximal`: the log-probs themselves if None;
    `totals`: those of these tokens alone."""
    it = torch.tensor(logprobs, dtype=torch.float32).requires_grad_()
    found = torch.zeros(len(it)) if values is None else torch.tensor(values, dtype=torch.float32)
    found.requires_grad_()
    batch = token_batch(
        targets,
        logprobs=it,
        proximal_logprobs=it.detach() if proximal is None else torch.tensor(proximal, dtype=torch.float32),
        values=found,
    )
    totals = {**standard_totals(targets), **algorithm.totals(targets)} if totals is None else totals
    sums = loss_of(algorithm, batch, totals)
    loss = reduced(sums.terms, totals)
    loss.backward()
    assert it.grad is not None
    return loss.item(), it.grad.tolist(), [] if found.grad is None else found.grad.tolist(), sums
