"""Compares an engine's log-probs of probe sequences with the learner's, and with those before the last load."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coa.types import Floats


@dataclass(frozen=True, slots=True)
class Answer:
    """Log-probs of all tokens of a probe sequence but the first."""

    learner: Floats
    engine: Floats


Answers = Mapping[bytes, Answer]
"""By the sequence's token ids."""


def differences(answers: Answers) -> Floats:
    """|learner - engine| of all tokens."""
    return np.concatenate([*(np.abs(one.engine - one.learner) for one in answers.values()), np.zeros(0, np.float32)])


def unmoved(before: Answers, now: Answers) -> bool:
    """Whether the engine's log-probs of the sequences in both are what they were, bit for bit, though the learner's
    have changed: it did not take the new weights.

    In bfloat16, engine and learner differ by more than consecutive versions do, so no tolerance between the two could
    tell this. Kernels that round differently beside other requests hide it for this version.
    """
    pairs = [(before[key], answer) for key, answer in now.items() if key in before]
    taught = any(not np.array_equal(old.learner, new.learner) for old, new in pairs)
    return taught and all(np.array_equal(old.engine, new.engine) for old, new in pairs)
