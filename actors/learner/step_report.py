"""Metrics of a learner's step: summed on each rank during the step, and over all ranks at its end."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actors.learner.finite import Wrong, cause_of
from actors.learner.policy import Outputs
from actors.learner.scoring import ScoredBatch
from actors.learner.zero import gather
from coa.learning import faults
from coa.learning.algorithms.base import TOKENS, LossSums, Totals
from coa.types import ENVIRONMENT

NEUTRAL = {"clip_fraction": 0.0, "truncated_weight_fraction": 0.0, "ratio_mean": 1.0}
"""Metrics that most algorithms have, with their values for algorithms or batches without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """Metrics of a step, over all ranks."""

    samples: int
    tokens: int
    """Number of trained tokens."""
    loss: float
    """Mean loss of the updates, weighted by their trained tokens."""
    grad_norm: float
    """Gradient norm of the last update, before clipping; infinite if that update was skipped."""
    lr: float
    entropy: float
    """Mean over the trained tokens, in nats, under the trained policy; 0 if not measured."""
    kl_rollout: float
    """Mean of rollout_logprobs - logprobs (the estimator k1) over `compared` tokens."""
    clip_fraction: float
    """Share of trained tokens (or sequences) whose ratio was clipped."""
    truncated_weight_fraction: float
    """Share of sampled tokens (or sequences) whose importance weight was truncated."""
    ratio_mean: float
    """Mean probability ratio of policy to proximal policy, over sampled tokens (or sequences)."""
    compared: int
    """Number of sampled tokens whose log-probs before the batch's first update are known: without a proximal pass those
    of the first update."""
    fresh_tokens: int
    """Number of compared tokens that the version being trained sampled."""
    logprob_max_diff: float | None
    """Maximum |learner - sampler| over the fresh tokens; None if there are none."""
    logprob_mean_diff: float | None
    """Mean |learner - sampler| over the fresh tokens; None if there are none."""
    logprob_gap: float
    """Mean |learner - sampler| over compared tokens, without each sample's first."""
    logprob_shifted_gap: float
    """The same with the sampler's log-probs shifted by one token, in the direction that fits better."""
    unsampled: int
    """Number of trained tokens that no policy sampled and that have no imitation weight."""
    untrained: int
    """Number of sampled tokens that are not trained."""
    shared_fraction: float
    """Share of the samples' tokens that were not computed, because another sample begins with them."""
    staleness_mean: float
    """Mean staleness in versions, over sampled tokens."""
    staleness_max: int
    updates: int
    """Number of updates that changed the weights."""
    skipped: int
    """Number of updates that changed neither the weights nor the optimizer's state, since a gradient was not finite."""
    not_finite: str | None
    """The first quantity that was not finite in the skipped updates; None if there are none."""
    algorithm: Mapping[str, float]
    """The algorithm's other metrics, and the terms of its loss."""


@dataclass
class Sums:
    """This rank's running sums of one step; `report` adds up the ranks (a collective)."""

    version: int
    samples: int = 0
    grad_norm: float = 0.0
    tokens: float = 0.0
    loss: float = 0.0
    entropy: float = 0.0
    divergence: float = 0.0
    staleness: float = 0.0
    sampled: int = 0
    compared: int = 0
    oldest: int = 0
    diff: float = 0.0
    diff_sum: float = 0.0
    fresh: int = 0
    gaps: NDArray[np.float64] = field(default_factory=lambda: np.zeros(4))
    """Running sums of `coa.learning.faults.gaps`."""
    unsampled: int = 0
    untrained: int = 0
    computed: int = 0
    """Tokens that were computed, of `whole`."""
    whole: int = 0
    """Tokens of the samples."""
    updates: int = 0
    """Number of updates so far that changed the weights: after the first, the policy's log-probs can't be compared with
    the sampler's."""
    skipped: int = 0
    wrong: Wrong = field(default_factory=Counter)
    """Quantities that are not finite in the update under way."""
    causes: Wrong = field(default_factory=Counter)
    """The same of all skipped updates."""
    metrics: dict[str, float] = field(default_factory=dict)
    per: dict[str, str] = field(default_factory=dict)
    """Key in `totals` of each metric's denominator."""
    totals: Totals = field(default_factory=dict)
    """Over all ranks, the same on every rank: the algorithm's own totals, and the standard ones of the updates so
    far."""

    def add(self, batch: ScoredBatch, outputs: Outputs, proximal: Tensor, loss: Tensor, totals: Totals) -> None:
        """Adds a micro-batch after its forward pass. `loss`: its part of the loss."""
        rows = batch.rows
        self.tokens += len(rows.trained)
        self.loss += loss.item() * totals[TOKENS]
        self.entropy += float(outputs.entropy.sum())
        versions = rows.versions
        there = versions != ENVIRONMENT
        self.unsampled += int((~there & (rows.imitate == 0)).sum())
        self.untrained += rows.untrained
        self.computed += rows.tokens
        self.whole += rows.whole
        if there.any():
            ages = self.version - versions[there]
            self.staleness += float(ages.sum())
            self.sampled += int(there.sum())
            self.oldest = max(self.oldest, int(ages.max()))
            if self.updates and batch.proximal is None:
                return
            targets = batch.targets
            gaps = (targets.rollout_logprobs - proximal).cpu().numpy()
            self.divergence += float(gaps[there].sum(dtype=np.float64))
            self.compared += int(there.sum())
            rollout, segments = targets.rollout_logprobs.cpu().numpy()[there], targets.segments.cpu().numpy()[there]
            self.gaps += faults.gaps(rollout, proximal.cpu().numpy()[there], segments)
            if (fresh := versions == self.version).any():
                apart = np.abs(gaps[fresh])
                self.diff = float(np.max([self.diff, apart.max()]))  # unlike max(), this keeps NaN
                self.diff_sum, self.fresh = self.diff_sum + float(apart.sum(dtype=np.float64)), self.fresh + len(apart)

    def measure(self, sums: LossSums) -> None:
        """Adds a micro-batch's metrics and the terms of its loss."""
        for name, one in {**sums.terms, **sums.metrics}.items():
            self.metrics[name] = self.metrics.get(name, 0.0) + float(one.total.detach())
            self.per[name] = one.per

    def end(self, *, applied: bool, grad_norm: float) -> None:
        """An update has ended. applied: whether it changed the weights; the same on all ranks."""
        self.updates += applied
        self.skipped += not applied
        self.causes += Counter() if applied else self.wrong
        self.wrong, self.grad_norm = Counter(), grad_norm

    def report(self, lr: float, *, alike: int) -> StepReport:
        """Sums over all ranks. alike: number of adjacent ranks with the same sums, as in `gather`."""
        ranks = gather(self, alike=alike)
        tokens, sampled, compared = (sum(getattr(r, of) for r in ranks) for of in ("tokens", "sampled", "compared"))
        per = {name: self.totals[total] for rank in ranks for name, total in rank.per.items()}
        fresh = sum(r.fresh for r in ranks)
        here, late, early, pairs = np.sum([r.gaps for r in ranks], axis=0).tolist()
        means = {name: sum(r.metrics.get(name, 0.0) for r in ranks) / over for name, over in per.items() if over}
        return StepReport(
            samples=sum(r.samples for r in ranks),
            tokens=int(tokens),
            loss=sum(r.loss for r in ranks) / max(tokens, 1),
            grad_norm=self.grad_norm,
            lr=lr,
            entropy=sum(r.entropy for r in ranks) / max(tokens, 1),
            kl_rollout=sum(r.divergence for r in ranks) / max(compared, 1),
            **{name: means.pop(name, neutral) for name, neutral in NEUTRAL.items()},
            compared=compared,
            fresh_tokens=fresh,
            logprob_max_diff=float(np.max([r.diff for r in ranks])) if fresh else None,
            logprob_mean_diff=sum(r.diff_sum for r in ranks) / fresh if fresh else None,
            logprob_gap=here / max(pairs, 1),
            logprob_shifted_gap=min(late, early) / max(pairs, 1),
            unsampled=sum(r.unsampled for r in ranks),
            untrained=sum(r.untrained for r in ranks),
            shared_fraction=1.0 - sum(r.computed for r in ranks) / max(sum(r.whole for r in ranks), 1),
            staleness_mean=sum(r.staleness for r in ranks) / max(sampled, 1),
            staleness_max=max(r.oldest for r in ranks),
            updates=self.updates,
            skipped=self.skipped,
            not_finite=cause_of(sum((r.causes for r in ranks), Counter())) if self.skipped else None,
            algorithm=means,
        )
