"""The interface of an algorithm: which groups it keeps, their advantages, the inputs that it needs, and its loss.

driver   keep(group), advantages(group)         a group: the graded episodes of one task
ranks    needs                                  what is scored before the first update of a batch
         totals(targets)                        sums over the batch of all updates, before its first backward pass
         loss(batch, totals)                    unreduced sums of a micro-batch, with the names of their denominators

The learner is independent of the algorithm: it packs, scores, adds up, and steps. The imitation loss of a batch is
added to every algorithm's loss (`coa.learning.algorithms.loss_of`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from math import inf
from typing import TYPE_CHECKING, NamedTuple, Protocol

from coa.learning.advantages import Rewarded
from coa.types import Floats

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = "tokens"
"""Denominator: trained tokens of an update on all ranks, both sampled and imitated."""
SAMPLED = "sampled"
"""Denominator: trained tokens that a policy sampled, without imitated tokens."""
SEQUENCES = "sequences"
"""Denominator: samples with at least one trained token that a policy sampled."""
STANDARD = frozenset({TOKENS, SAMPLED, SEQUENCES})


@dataclass(frozen=True, slots=True)
class Needs:
    """The inputs that an algorithm needs."""

    group: int = 1
    """Minimum number of episodes per task."""
    proximal: bool = True
    """Whether it needs log-probs from before the first update of a batch; they cost nothing if a batch is one update.
    If False, `TokenBatch.proximal_logprobs` are those of the current policy, also after the first update."""
    reference: bool = False
    """Whether it needs log-probs of the stage's initial model, which every rank then holds beside the policy."""
    values: bool = False
    """Whether it needs a value for each token, from a head on the policy's hidden states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTargets:
    """The trained tokens of a micro-batch, flattened sample by sample, with what is known before training; [P] each."""

    segments: "Tensor"
    """Index of each token's sample, from 0; int64, non-decreasing."""
    samples: int
    """Number of samples in the micro-batch, including those without a trained token."""
    sampled: "Tensor"
    """Whether a policy sampled the token; False if it is only imitated."""
    imitate: "Tensor"
    reinforce: "Tensor"
    """Advantage of the token's sample, from the driver's `advantages`."""
    rollout_logprobs: "Tensor"
    ages: "Tensor"
    """Staleness: the trained version minus the version that sampled the token; 0 if it is imitated."""
    reference_logprobs: "Tensor"
    """Zeros if the algorithm does not need them."""
    old_values: "Tensor"
    """Values before the first update of the batch; zeros if the algorithm does not need them."""
    bounds: tuple[float, float] = (-inf, inf)
    """Least and largest `reinforce` of sampled tokens in the batch of all updates, on all ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch(TokenTargets):
    """The same tokens with the current policy's log-probs and values."""

    logprobs: "Tensor"
    """Log-probs under the current policy, with a gradient."""
    proximal_logprobs: "Tensor"
    values: "Tensor"
    """Current values, with a gradient; zeros if the algorithm does not need them."""


def token_batch(
    targets: TokenTargets, *, logprobs: "Tensor", proximal_logprobs: "Tensor", values: "Tensor"
) -> TokenBatch:
    known = {one.name: getattr(targets, one.name) for one in fields(TokenTargets)}
    return TokenBatch(**known, logprobs=logprobs, proximal_logprobs=proximal_logprobs, values=values)


class Sum(NamedTuple):
    total: "Tensor"
    """Scalar: the sum over a micro-batch."""
    per: str
    """Name of the denominator: a standard total, of the update, or one of the algorithm's own, of the whole batch."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """A micro-batch's contribution to the loss and to the recorded metrics."""

    terms: Mapping[str, Sum]
    """Loss terms: the loss is the sum of the terms, each divided by its denominator."""
    metrics: Mapping[str, Sum] = field(default_factory=dict)
    """Metrics, recorded as means over their denominators, without a gradient."""


Totals = Mapping[str, float]
"""Sums over micro-batches and ranks. `TOKENS`, `SAMPLED` and `SEQUENCES` are those of one update. An algorithm's own
are those of the batch, which is several updates if `rl.learner.updates_per_batch` is above 1: a mean needs both its sum
and its count from them."""


class Algorithm(Protocol):
    """A frozen dataclass whose fields are its settings (`rl.algorithm_settings` in a recipe).

    A field `surrogate: LossConfig` gets the recipe's `rl.learner.loss`. `policy_gradient.py` has base classes.
    """

    @property
    def needs(self) -> Needs: ...

    def keep(self, group: Sequence[Rewarded]) -> bool:
        """Whether the group is used for training."""
        ...

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        """[n], one advantage per episode, assigned to each token that the policy sampled in it (`Sample.reinforce`)."""
        ...

    def totals(self, targets: TokenTargets) -> Totals:
        """Sums of a micro-batch that the loss needs over the batch of all updates; their names are not those of
        `standard_totals`."""
        ...

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        """The loss of sampled tokens; the imitation loss is added by the caller."""
        ...


def own_totals(algorithm: Algorithm, targets: TokenTargets) -> Totals:
    """The algorithm's totals of a micro-batch; raises ValueError if they have the name of a standard total, which is
    that of an update."""
    found = algorithm.totals(targets)
    if taken := STANDARD & found.keys():
        raise ValueError(f"totals of {type(algorithm).__name__} are named {', '.join(sorted(taken))}: take other names")
    return found


def standard_totals(targets: TokenTargets) -> dict[str, float]:
    """The denominators that are available to every algorithm."""
    sampled = targets.segments[targets.sampled]
    return {
        TOKENS: float(len(targets.segments)),
        SAMPLED: float(len(sampled)),
        SEQUENCES: float(len(sampled.unique())),
    }
