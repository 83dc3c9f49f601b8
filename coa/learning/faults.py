"""Detects errors that change what is learnt without stopping anything, and describes each in a sentence. Pure.

    log-probs one token off       they fit the learner's better when they are shifted back
    stale weights, a fresh name   tokens of the version that is trained have other log-probs than its weights give, or
                                  an engine that has loaded a version has other log-probs than the learner's
    a mask one token off          tokens are trained that nobody sampled, and that are not to be imitated
    advantages of another group   those of a group do not add up to 0, or do not follow its rewards

An empty completion, and a reward that raises, fail their episode or the stage where they happen.
"""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from coa.types import Floats, Sample, Tokens

LEAST_GAP = 0.02
"""Nats, on average: of smaller differences a shift would say nothing."""
LEAST_SUM = 1e-3
"""Of a group's advantages, beside the largest of them: more than rounding."""


class Measured(Protocol):
    """What the learners report of a step, over all ranks."""

    @property
    def logprob_mean_diff(self) -> float | None: ...

    @property
    def logprob_gap(self) -> float: ...

    @property
    def logprob_shifted_gap(self) -> float: ...

    @property
    def unsampled(self) -> int: ...


class Synced(Protocol):
    """What an engine reports of a load of new weights."""

    @property
    def version(self) -> int: ...

    @property
    def logprob_diff(self) -> float: ...

    @property
    def logprob_mean_diff(self) -> float: ...

    @property
    def alarm(self) -> bool: ...


def of_sync(reports: Sequence[Synced]) -> list[str]:
    """Of all engines that took a version. Unlike the tokens that are trained, whose version may be older, every version
    is compared here."""
    apart = [report for report in reports if report.alarm]
    if not apart:
        return []
    worst = float(np.max([report.logprob_diff for report in apart]))
    mean = float(np.max([report.logprob_mean_diff for report in apart]))
    return [
        f"{len(apart)} of {len(reports)} engines compute with other weights than those of version {apart[0].version}, "
        f"which they report: log-probs are up to {worst:.2g} nats from the learner's, {mean:.2g} on average"
    ]


def of_step(report: Measured, tolerance: float | None) -> list[str]:
    """`tolerance`: of the mean difference of learner and engine, in nats; None where they differ anyway."""
    found: list[str] = []
    gap, shifted = report.logprob_gap, report.logprob_shifted_gap
    if gap > LEAST_GAP and shifted < gap / 2:
        found.append(
            f"log-probs at sampling are one token off: {gap:.2g} nats from the learner's, {shifted:.2g} shifted"
        )
    elif tolerance is not None and (apart := report.logprob_mean_diff) is not None and not apart <= tolerance:
        found.append(
            f"engines sampled with other weights than those of the version that they name: log-probs are "
            f"{apart:.2g} nats from the learner's"
        )
    if report.unsampled:
        found.append(f"{report.unsampled} tokens were trained that no policy sampled: the mask belongs to others")
    return found


def of_credit(group: int, samples: Sequence[Sample], rewards: Sequence[float]) -> list[str]:
    """Of all samples of a group, with their episodes' rewards, whose advantages are relative to one another."""
    pairs = [
        (reward, float(sample.reinforce[sample.loss_mask][0]))
        for reward, sample in zip(rewards, samples, strict=True)
        if sample.loss_mask.any()
    ]
    credit = [one for _, one in pairs]
    largest = max(map(abs, credit), default=0.0)
    if abs(sum(credit)) > LEAST_SUM * largest * len(credit):
        return [f"the advantages of group {group} add up to {sum(credit):.2g}, not 0: they are of another group"]
    # All of another group's add up as well, but belong to other rewards.
    if any(one > other + LEAST_SUM * largest for less, one in pairs for more, other in pairs if less <= more):
        return [f"the advantages of group {group} do not follow its rewards: they are of another group"]
    return []


def gaps(rollout: Floats, learner: Floats, segments: Tokens) -> tuple[float, float, float, int]:
    """Of [P] log-probs of sampled tokens, sample after sample: sums of absolute differences as they are, with those at
    sampling one token late, and one token early; and the number of pairs of neighbours that they are over."""
    within = segments[1:] == segments[:-1]

    def apart(ours: Floats, theirs: Floats) -> float:
        return float(np.abs(ours[within].astype(np.float64) - theirs[within]).sum())

    late, early = apart(rollout[1:], learner[:-1]), apart(rollout[:-1], learner[1:])
    return apart(rollout[1:], learner[1:]), late, early, int(within.sum())
