"""Advantages: how much better each episode was than the others of its group."""

from collections.abc import Sequence
from enum import Enum
from typing import Protocol

import numpy as np

from coa.types import Floats


class Rewarded(Protocol):
    """What of an episode decides about credit."""

    @property
    def grade(self) -> float: ...

    @property
    def reward(self) -> float: ...


class Spread(Enum):
    """What the episodes of a group have to differ in for something to be learnt from it."""

    grade = "grade"
    """Right and wrong: no group is learnt from whose answers are all right, or all wrong, however long they are."""
    reward = "reward"
    """The shaped reward: for rewards that are about something else than the answer."""


def group_relative(rewards: Sequence[float]) -> Floats:
    """(reward - group mean) / (group standard deviation + 1e-6), per episode; 0 for a group of one (GRPO, arXiv
    2402.03300, section 4.1.2).

    The deviation is the sample's (divided by n - 1), as verl and TRL have it.
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
    """reward - mean of the others' rewards, per episode; 0 for a group of one (RLOO, arXiv 2402.14740, section 3)."""
    array = np.asarray(rewards, np.float64)
    others = (array.sum() - array) / max(len(array) - 1, 1)
    return (array - others if len(array) > 1 else np.zeros(len(array))).astype(np.float32)


def informative(group: Sequence[Rewarded], spread: Spread = Spread.grade) -> bool:
    """Whether the group says anything about what is better than what (DAPO's dynamic sampling keeps only those)."""
    values = [episode.reward if spread is Spread.reward else episode.grade for episode in group]
    rewards = [episode.reward for episode in group]
    return len(group) > 1 and max(values) > min(values) and max(rewards) > min(rewards)
