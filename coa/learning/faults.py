"""Detects silent errors, which corrupt training without stopping it, and describes each in a sentence. Pure.

    log-probs one token off        rollout log-probs match the learner's better if they are shifted by one token
    wrong weights on an engine     tokens of the trained version, or the probes of a weight update, have other log-probs
                                   than the learner computes, or the same ones as before the update
    a loss mask one token off      trained tokens are neither sampled nor imitated, or sampled tokens are not trained
    advantages of another group    a group's advantages do not add up to 0, or do not follow its rewards; with PPO and
                                   REINFORCE++: they are not its rewards
    an update that is skipped      its gradient is not finite

Empty completions and rewards that raise are not silent: they fail their episode or the stage. So do rewards, advantages
and recorded log-probs that are not finite.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import numpy as np

from coa.types import Floats, Sample, Tokens

LEAST_GAP = 0.02
"""Minimum mean difference of log-probs, in nats, at which shifted log-probs are compared."""
LEAST_SUM = 1e-3
"""Tolerance for rounding errors of a group's advantages, relative to the largest."""


class Updated(Protocol):
    """The measurements of a batch's updates."""

    @property
    def updates(self) -> int: ...

    @property
    def skipped(self) -> int: ...

    @property
    def not_finite(self) -> str | None: ...


class Measured(Updated, Protocol):
    """The learners' measurements of a step, over all ranks."""

    @property
    def logprob_mean_diff(self) -> float | None: ...

    @property
    def logprob_gap(self) -> float: ...

    @property
    def logprob_shifted_gap(self) -> float: ...

    @property
    def unsampled(self) -> int: ...

    @property
    def untrained(self) -> int: ...


class Synced(Protocol):
    """An engine's report of a load of new weights."""

    @property
    def version(self) -> int: ...

    @property
    def logprob_diff(self) -> float: ...

    @property
    def logprob_mean_diff(self) -> float: ...

    @property
    def alarm(self) -> bool: ...

    @property
    def unmoved(self) -> bool: ...


def of_sync(reports: Sequence[Synced]) -> list[str]:
    """Faults of the engines that loaded a version. Every version is compared here, also one whose tokens are trained
    only at a later version."""
    found: list[str] = []
    if same := [report for report in reports if report.unmoved]:
        found.append(
            f"{len(same)} of {len(reports)} engines compute with the weights from before version {same[0].version}, "
            "which they report: their log-probs have not changed, the learner's have"
        )
    if apart := [report for report in reports if report.alarm and not report.unmoved]:
        worst = float(np.max([report.logprob_diff for report in apart]))
        mean = float(np.max([report.logprob_mean_diff for report in apart]))
        found.append(
            f"{len(apart)} of {len(reports)} engines compute with other weights than those of version "
            f"{apart[0].version}, which they report: log-probs are up to {worst:.2g} nats from the learner's, "
            f"{mean:.2g} on average"
        )
    return found


def of_updates(report: Updated) -> list[str]:
    """The updates of a step that were skipped."""
    if not report.skipped:
        return []
    if not report.updates:
        return [f"nothing was learnt from the batch: {report.not_finite}"]
    return [f"{report.skipped} of {report.skipped + report.updates} updates were skipped: {report.not_finite}"]


def of_step(report: Measured, tolerance: float | None) -> list[str]:
    """The silent errors of a step. `tolerance`: maximum mean difference of log-probs between learner and engine, in
    nats; None if they are expected to differ."""
    if found := of_updates(report):
        return found  # its measurements may not be finite either, for the same cause
    found: list[str] = []
    gap, shifted = report.logprob_gap, report.logprob_shifted_gap
    if gap > LEAST_GAP and shifted < gap / 2:
        found.append(
            f"rollout log-probs are one token off: {gap:.2g} nats from the learner's, {shifted:.2g} if shifted by one"
        )
    elif tolerance is not None and (apart := report.logprob_mean_diff) is not None and not apart <= tolerance:
        found.append(
            f"engine weights do not match their reported version: log-probs are {apart:.2g} nats from the learner's"
        )
    if report.unsampled:
        found.append(f"{report.unsampled} trained tokens were not sampled by the policy: the loss mask is misaligned")
    elif report.untrained:
        found.append(f"{report.untrained} tokens that the policy sampled are not trained: the loss mask is misaligned")
    return found


class Credit(Enum):
    """The kind of advantages that an algorithm gives a group."""

    rewards = "rewards"
    """The episodes' rewards."""
    relative = "relative"
    """They add up to 0 over the group, and an episode with a higher reward has no lower one."""


def of_credit(group: int, samples: Sequence[Sample], rewards: Sequence[float], credit: Credit) -> list[str]:
    """The silent errors of a group's advantages. `samples`, `rewards`: of the same episodes, in the same order, and for
    relative ones all of the group's."""
    pairs = [
        (reward, float(sample.reinforce[sample.loss_mask][0]))
        for reward, sample in zip(rewards, samples, strict=True)
        if sample.loss_mask.any()
    ]
    given = [one for _, one in pairs]
    error = LEAST_SUM * max(map(abs, given), default=0.0)
    if credit is Credit.rewards:
        if any(abs(one - reward) > LEAST_SUM * max(1.0, abs(reward)) for reward, one in pairs):
            return [f"the advantages of group {group} are not its rewards: they are of another group"]
        return []
    if abs(sum(given)) > error * len(given):
        return [f"the advantages of group {group} add up to {sum(given):.2g}, not 0: they are of another group"]
    # The complete advantages of another group add up to 0 as well, but do not follow these rewards.
    if any(one > other + error for less, one in pairs for more, other in pairs if less <= more):
        return [f"the advantages of group {group} do not follow its rewards: they are of another group"]
    return []


def gaps(rollout: Floats, learner: Floats, segments: Tokens) -> tuple[float, float, float, int]:
    """Sums of absolute differences between rollout and learner log-probs: aligned, with rollout one token late, and
    with rollout one token early; and the number of pairs of neighbors in each sum. Arguments: [P], the sampled tokens,
    sample by sample."""
    within = segments[1:] == segments[:-1]

    def apart(ours: Floats, theirs: Floats) -> float:
        return float(np.abs(ours[within].astype(np.float64) - theirs[within]).sum())

    late, early = apart(rollout[1:], learner[:-1]), apart(rollout[:-1], learner[1:])
    return apart(rollout[1:], learner[1:]), late, early, int(within.sum())
