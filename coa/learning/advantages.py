"""Advantages: how much better each episode was than the others of its group."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import numpy as np

from coa.types import Floats


class Rewarded(Protocol):
    """The values of an episode from which advantages are computed."""

    @property
    def grade(self) -> float: ...

    @property
    def reward(self) -> float: ...


class Spread(Enum):
    """The value in which the episodes of a group have to differ for the group to be trained."""

    grade = "grade"
    """The grade: a group with only right or only wrong answers is not trained, even if its shaped rewards differ."""
    reward = "reward"
    """The shaped reward: for rewards that depend on something other than the answer."""


def group_relative(rewards: Sequence[float]) -> Floats:
    """(reward - group mean) / (group standard deviation + 1e-6), per episode; 0 for a group of one (GRPO, arXiv
    2402.03300, section 4.1.2).

    The standard deviation is the sample's (divided by n - 1), as in verl and TRL.
    """
    array = np.asarray(rewards, np.float64)
    if len(array) < 2:
        return np.zeros(len(array), np.float32)
    return ((array - array.mean()) / (array.std(ddof=1) + 1e-6)).astype(np.float32)


def centred(rewards: Sequence[float]) -> Floats:
    """reward - group mean, per episode (Dr. GRPO, arXiv 2503.20783, section 3.2)."""
    array = np.asarray(rewards, np.float64)
    return (array - array.mean()).astype(np.float32)


def leave_one_out(rewards: Sequence[float]) -> Floats:
    """reward - mean of the group's other rewards, per episode; 0 for a group of one (RLOO, arXiv 2402.14740,
    section 3)."""
    array = np.asarray(rewards, np.float64)
    others = (array.sum() - array) / max(len(array) - 1, 1)
    return (array - others if len(array) > 1 else np.zeros(len(array))).astype(np.float32)


def informative(group: Sequence[Rewarded], spread: Spread = Spread.grade) -> bool:
    """Whether the group has non-zero variance, in its rewards and by `spread` (DAPO's dynamic sampling keeps only such
    groups)."""
    values = [episode.reward if spread is Spread.reward else episode.grade for episode in group]
    rewards = [episode.reward for episode in group]
    return len(group) > 1 and max(values) > min(values) and max(rewards) > min(rewards)
