"""What a step of the learner did: summed on each rank as it goes, added up over the ranks at its end."""

from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist

from coa.packing import MicroBatch
from coa.types import ENVIRONMENT, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a step did, over all ranks."""

    samples: int
    tokens: int
    """Trained tokens."""
    loss: float
    """Mean over the trained tokens."""
    grad_norm: float
    clipped: float
    """Share of trained tokens whose ratio was clipped."""
    weight: float
    """Mean correction weight of reinforced tokens."""
    logprob_max_diff: float
    """Largest |learner - sampler| over tokens that the version being trained sampled; 0 where there were none."""
    staleness_mean: float
    """Versions, over sampled tokens."""
    staleness_max: int


class Sums:
    """This rank's running sums of one step; `report` adds up the ranks (a collective)."""

    def __init__(self) -> None:
        self.samples = 0
        self.grad_norm = 0.0
        self._tokens = self._loss = self._clipped = self._weight = self._reinforced = 0.0
        self._staleness = self._sampled = 0.0
        self._oldest = 0
        self._diff = 0.0

    def add(self, batch: MicroBatch, loss: float, clipped: float, weight: float, version: int) -> None:
        self._tokens += int(batch.trained.sum())
        self._loss += loss
        self._clipped += clipped
        self._weight += weight
        self._reinforced += int((batch.reinforce[batch.trained] != 0).sum())
        ages = version - batch.versions[batch.trained & (batch.versions != ENVIRONMENT)]
        if len(ages):
            self._staleness += float(ages.sum())
            self._sampled += len(ages)
            self._oldest = max(self._oldest, int(ages.max()))

    def compare(self, batch: MicroBatch, logprobs: Floats, version: int) -> None:
        fresh = batch.versions[batch.trained] == version
        if fresh.any():
            difference = np.abs(logprobs - batch.sampled_logprobs[batch.trained])[fresh]
            self._diff = float(np.max([self._diff, difference.max()]))  # unlike max(), this keeps NaN

    def report(self) -> StepReport:
        added = [self.samples, self._tokens, self._loss, self._clipped, self._weight, self._reinforced]
        sums = torch.tensor([*added, self._staleness, self._sampled], dtype=torch.float64)
        most = torch.tensor([self._oldest, self._diff], dtype=torch.float64)
        if dist.get_backend() == "nccl":
            sums, most = sums.cuda(), most.cuda()
        dist.all_reduce(sums)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        samples, tokens, loss, clipped, weight, reinforced, staleness, sampled = sums.tolist()
        return StepReport(
            samples=int(samples),
            tokens=int(tokens),
            loss=loss / max(tokens, 1),
            grad_norm=self.grad_norm,
            clipped=clipped / max(tokens, 1),
            weight=weight / reinforced if reinforced else 1.0,
            logprob_max_diff=float(most[1]),
            staleness_mean=staleness / max(sampled, 1),
            staleness_max=int(most[0]),
        )
