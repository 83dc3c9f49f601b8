"""Scores a batch before its first update, without gradients, with what the algorithm's `needs` list.

proximal     log-probs of the policy before the batch's first update; a single update takes them from its own pass
values       outputs of the value head before the batch's first update
reference    log-probs under the frozen model that the stage began with
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.learner.config import ModelConfig
from actors.learner.lora import without_adapters
from actors.learner.model.load import load_model
from actors.learner.model.parity import Way
from actors.learner.policy import Outputs, TrainedPolicy, to_tensors
from actors.learner.sequence.groups import SequenceGroup
from actors.learner.zero import sharded_loading
from coa.json_object import Json
from coa.learning.algorithms.base import Needs, TokenTargets
from coa.learning.packing import MicroBatch, micro_batch
from coa.types import ENVIRONMENT, Sample

Forward = Callable[..., Outputs]
"""A policy, or what shards one, called with `to_tensors` of a micro-batch."""


@dataclass(frozen=True, slots=True)
class ScoredBatch:
    """A micro-batch with its scores from before the first update."""

    rows: MicroBatch
    targets: TokenTargets
    proximal: Tensor | None
    """Log-probs [P] of the proximal policy; None if they are the training pass's own log-probs."""


class Passes:
    """The scoring passes of one rank; every method is collective."""

    def __init__(self, engine: Forward, reference: Forward | None, needs: Needs, device: torch.device) -> None:
        """`reference`: called like the engine; None if no reference is needed."""
        self._engine, self._reference, self._needs, self._device = engine, reference, needs, device

    def score(
        self,
        batches: Sequence[MicroBatch],
        *,
        version: int,
        most: int,
        proximal: bool,
        bounds: tuple[float, float],
    ) -> list[ScoredBatch]:
        """`version`: weight version that is trained. `most`: maximum number of micro-batches of any rank. `proximal`:
        whether the batch has several updates, so that the proximal log-probs must be computed now. `bounds`: as in
        `TokenTargets`."""
        proximal &= self._needs.proximal
        own = self._pass(self._engine, batches, most) if proximal or self._needs.values else []
        reference = [] if self._reference is None else self._pass(self._reference, batches, most)
        found: list[ScoredBatch] = []
        for index, batch in enumerate(batches):
            zeros = torch.zeros(len(batch.trained), device=self._device)
            targets = targets_of(
                batch,
                self._device,
                version=version,
                reference_logprobs=reference[index].logprobs if reference else zeros,
                old_values=own[index].values if own else zeros,
                bounds=bounds,
            )
            found.append(ScoredBatch(batch, targets, own[index].logprobs if proximal else None))
        return found

    def _pass(self, module: Forward, batches: Sequence[MicroBatch], most: int) -> list[Outputs]:
        with torch.no_grad():
            found = [module(**to_tensors(batch, self._device)) for batch in batches]
            for _ in range(most - len(batches)):  # with ZeRO-3 each forward pass is a collective
                module(**to_tensors(filler(), self._device))
        return found


def targets_of(
    batch: MicroBatch,
    device: torch.device,
    *,
    version: int,
    reference_logprobs: Tensor,
    old_values: Tensor,
    bounds: tuple[float, float] = (-inf, inf),
) -> TokenTargets:
    """The trained tokens of packed rows, in the order in which `PackedPolicy` returns their log-probs. `version`:
    weight version that is trained."""
    sampled = batch.versions != ENVIRONMENT

    def tensor(array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(device)

    return TokenTargets(
        segments=tensor(batch.segments),
        samples=len(batch.members),
        sampled=tensor(sampled),
        imitate=tensor(batch.imitate),
        reinforce=tensor(batch.reinforce),
        rollout_logprobs=tensor(batch.rollout_logprobs),
        ages=tensor(np.where(sampled, version - batch.versions, 0)),
        reference_logprobs=reference_logprobs,
        old_values=old_values,
        bounds=bounds,
    )


def bounds_of(samples: Sequence[Sample]) -> tuple[float, float]:
    """The least and the largest `reinforce` of the samples' sampled tokens; (inf, -inf) without any."""
    found = [sample.reinforce[sample.loss_mask & (sample.versions != ENVIRONMENT)] for sample in samples]
    low = min((float(one.min()) for one in found if len(one)), default=inf)
    return low, max((float(one.max()) for one in found if len(one)), default=-inf)


class Unadapted:
    """The model without its adapters, as the reference; needs no further weights."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __call__(self, **inputs: object) -> Outputs:
        with without_adapters(self._engine.module):
            return self._engine(**inputs)


def load_reference(
    model_dir: Path,
    model: ModelConfig,
    settings: Json,
    device: torch.device,
    *,
    temperature: float,
    logits_bytes: int,
    sequence: SequenceGroup | None,
    way: Way,
) -> Forward:
    """Loads the model of `model_dir`, frozen; sharded over the ranks if `settings` are those of ZeRO-3. sequence: ranks
    that share rows. way: how the policy computes."""
    import deepspeed

    with sharded_loading(settings, model_dir):
        hf_model = load_model(model_dir, model)
    policy = TrainedPolicy(hf_model, logits_bytes=logits_bytes, temperature=temperature, sequence=sequence, ways=(way,))
    policy.eval().requires_grad_(False)
    if settings["zero_optimization"]["stage"] != 3:
        return policy.to(device)
    engine, _, _, _ = deepspeed.initialize(model=policy, config=settings)
    return engine


def filler() -> MicroBatch:
    """A dummy micro-batch of two tokens, the second trained, for a rank that has run out of samples."""
    zeros = np.zeros(2, np.float32)
    sample = Sample(
        token_ids=np.zeros(2, np.int32),
        loss_mask=np.ones(2, np.bool_),
        imitate=zeros,
        reinforce=zeros,
        rollout_logprobs=zeros,
        versions=np.zeros(2, np.int32),
    )
    return micro_batch([[sample]])
