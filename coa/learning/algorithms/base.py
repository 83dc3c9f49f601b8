"""What an algorithm is: which groups it keeps, what it makes of their rewards, what it has to know, and its loss.

driver   keep(group), advantages(group)         a group: the graded episodes of one task
ranks    needs                                  what is scored before the first update of a batch
         totals(targets)                        sums over the whole batch, all-reduced before the first backward pass
         loss(batch, totals)                    unreduced sums of a micro-batch, with the names of their denominators

The learner knows none of it: it packs, scores, adds up, and steps. What is imitated in a batch, beside what is
reinforced, is added to every algorithm's loss (`coa.learning.algorithms.loss_of`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, NamedTuple, Protocol

from coa.learning.advantages import Rewarded
from coa.types import Floats

if TYPE_CHECKING:
    from torch import Tensor

TOKENS = "tokens"
"""Denominator: trained tokens of an update, whatever they are trained for, on all ranks."""
SAMPLED = "sampled"
"""Denominator: trained tokens that a policy sampled, as opposed to imitated ones."""
SEQUENCES = "sequences"
"""Denominator: samples with such tokens."""


@dataclass(frozen=True, slots=True)
class Needs:
    """What an algorithm has to be given."""

    group: int = 1
    """Episodes of a task that it compares at the least."""
    proximal: bool = True
    """Log-probs before the first update of a batch; where a batch is one update they cost nothing. Without them,
    `TokenBatch.proximal_logprobs` are the present ones."""
    reference: bool = False
    """Log-probs under the model that the stage began with, which every rank then holds beside its own."""
    values: bool = False
    """A value for each token, from a head on the policy's hidden states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTargets:
    """The trained tokens of a micro-batch, flat, sample after sample, before they are trained; [P] each."""

    segments: "Tensor"
    """Number of a token's sample, from 0, int64, never falling."""
    samples: int
    """Samples of the micro-batch, those without a trained token included."""
    sampled: "Tensor"
    """Whether a policy sampled the token; False for what is only imitated."""
    imitate: "Tensor"
    reinforce: "Tensor"
    """What the driver's `advantages` gave the token's sample."""
    rollout_logprobs: "Tensor"
    ages: "Tensor"
    """Versions since the token was sampled: 0 for one of the version that is trained."""
    reference_logprobs: "Tensor"
    """Zeros where the algorithm does not need them."""
    old_values: "Tensor"
    """Before the first update of the batch; zeros where the algorithm does not need them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch(TokenTargets):
    """The same tokens with what the policy makes of them now."""

    logprobs: "Tensor"
    """With a gradient."""
    proximal_logprobs: "Tensor"
    values: "Tensor"
    """With a gradient; zeros where the algorithm does not need them."""


def token_batch(
    targets: TokenTargets, *, logprobs: "Tensor", proximal_logprobs: "Tensor", values: "Tensor"
) -> TokenBatch:
    known = {one.name: getattr(targets, one.name) for one in fields(TokenTargets)}
    return TokenBatch(**known, logprobs=logprobs, proximal_logprobs=proximal_logprobs, values=values)


class Sum(NamedTuple):
    total: "Tensor"
    """Scalar: the sum over a micro-batch."""
    per: str
    """Name of its denominator, one of the batch's totals."""


@dataclass(frozen=True, slots=True)
class LossSums:
    """A micro-batch's part of the loss, and what is to be recorded of it."""

    terms: Mapping[str, Sum]
    """The loss is the sum of the terms, each over its denominator."""
    metrics: Mapping[str, Sum] = field(default_factory=dict)
    """Recorded as means over their denominators, without a gradient."""


Totals = Mapping[str, float]


class Algorithm(Protocol):
    """A frozen dataclass whose fields are its settings (`rl.algorithm_settings` in a recipe).

    A field `surrogate: LossConfig` gets the recipe's `rl.learner.loss`. `policy_gradient.py` has bases with most of it.
    """

    @property
    def needs(self) -> Needs: ...

    def keep(self, group: Sequence[Rewarded]) -> bool:
        """Whether something is to be learnt from the group."""
        ...

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        """[n], for each episode, what stands on each token that the policy sampled in it (`Sample.reinforce`)."""
        ...

    def totals(self, targets: TokenTargets) -> Totals:
        """Sums over a micro-batch that the loss wants to know of the whole batch, besides the standard ones."""
        ...

    def loss(self, batch: TokenBatch, totals: Totals) -> LossSums:
        """Of what the policy sampled; what is imitated is added to it."""
        ...


def standard_totals(targets: TokenTargets) -> dict[str, float]:
    """The denominators that every algorithm finds."""
    sampled = targets.segments[targets.sampled]
    return {
        TOKENS: float(len(targets.segments)),
        SAMPLED: float(len(sampled)),
        SEQUENCES: float(len(sampled.unique())),
    }
