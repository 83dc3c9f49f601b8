"""Predicts how long the stages of a run take on CPUs, from the speed of a matrix product there.

    evaluation   each token of each attempt passes through the model once, a task's prompt only for the first attempt
    SFT          each token of a batch passes through it three times or more: forward, backward
    RL           both; engines and learners have the same cores

Attempts are taken to be as long as the demonstrations.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from coa.planning.models import Architecture

ENGINE, LEARNER = 0.35, 0.6
"""Shares of a matrix product's speed that engines, with tens of requests at once, and learners reach."""
START_S = 40.0
"""Seconds until an engine or a learner has started."""
ROWS = 512
PROBE_S = 1.0


@dataclass(frozen=True, slots=True)
class Lengths:
    """Mean tokens of the demonstrations."""

    prompt: float
    whole: float

    def of_group(self, size: int) -> float:
        """Tokens that are computed for a group's episodes if their prompt is computed once."""
        return self.prompt + size * (self.whole - self.prompt)


@dataclass(frozen=True, slots=True)
class Work:
    """Tokens that a stage computes."""

    played: float = 0.0
    learnt: float = 0.0
    """Each counted as often as it passes through the model."""
    starts: bool = False
    """Whether processes start first."""

    def seconds(self, built: Architecture, lengths: Lengths, flops_s: float) -> float:
        """flops_s: floating-point operations per second of a matrix product."""
        operations = built.flops(lengths.whole / 2) * (self.played / ENGINE + self.learnt / LEARNER)
        return START_S * self.starts + operations / flops_s


def flops_s(width: int) -> float:
    """Floating-point operations per second of a product of [ROWS, width] and [width, 4 width] in float32, on all cores:
    those of the fastest within PROBE_S."""
    left, right = np.ones((ROWS, width), np.float32), np.ones((width, 4 * width), np.float32)
    fastest, until = float("inf"), time.perf_counter() + PROBE_S
    while (began := time.perf_counter()) < until:
        np.matmul(left, right)
        fastest = min(fastest, time.perf_counter() - began)
    return 2 * ROWS * width * 4 * width / fastest


def in_words(seconds: Mapping[str, float], flops_s: float) -> str:
    """One line about the stages that are left."""
    parts = ", ".join(f"{name} {max(1, round(took / 60))}" for name, took in seconds.items())
    return (
        f"from here about {max(1, round(sum(seconds.values()) / 60))} minutes on this machine ({parts}), by "
        f"{flops_s / 1e9:.0f} GFLOP/s and attempts as long as the demonstrations; RL takes longer if groups are dropped"
    )
