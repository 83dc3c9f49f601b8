"""The optimizer's settings, the learning rate of each step, and the number of steps for a number of epochs.

    lr |   ______          wsd: constant up to `flat_share` of the steps, then linear to the floor
       |  /      \\
       | /        \\___     floor: min_share * lr
       |/_____________
        warm-up    steps    constant, linear, cosine: begin at the end of the warm-up
"""

import math
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction

from coa.bounds import Share


class Schedule(Enum):
    wsd = "wsd"
    """Warm-up, stable, decay: the full rate for `flat_share` of the steps, then a linear decay."""
    constant = "constant"
    linear = "linear"
    cosine = "cosine"


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW and the schedule of its learning rate."""

    lr: float = 1e-6
    """Maximum learning rate."""
    schedule: Schedule = Schedule.wsd
    """Learning rate after the warm-up: wsd stays constant for `flat_share` of the steps and then falls linearly;
    constant, linear and cosine are the usual schedules."""
    warmup_steps: int = 0
    """Number of steps in which the learning rate grows linearly from 0."""
    warmup_ratio: Share = 0.0
    """Warm-up steps as a share of all steps, rounded up; set only one of `warmup_steps` and `warmup_ratio`."""
    flat_share: Share = 1.0
    """wsd: share of the steps before the learning rate falls, warm-up included; with 1 it never falls."""
    min_share: Share = 0.0
    """Final learning rate as a share of the maximum; it would be reached one step after the last."""
    beta1: Share = 0.9
    """AdamW's decay of the mean of gradients."""
    beta2: Share = 0.95
    """AdamW's decay of the mean of squared gradients."""
    weight_decay: float = 0.0
    """AdamW's weight decay of matrices; norms and other vectors have none."""
    clip_norm: float = 1.0
    """Maximum norm of an update's gradient; a larger gradient is scaled down."""

    def __post_init__(self) -> None:
        if self.warmup_steps and self.warmup_ratio:
            raise ValueError("warmup_steps and warmup_ratio are both set; set only one of them")
        if self.flat_share != 1.0 and self.schedule is not Schedule.wsd:
            raise ValueError(f"flat_share belongs to schedule wsd, not {self.schedule.value}")


def learning_rate(step: int, steps: int, config: OptimizerConfig) -> float:
    """The learning rate of step `step` (from 0) of `steps`."""
    warm_steps = config.warmup_steps or _ceil(config.warmup_ratio, steps)
    warm = min(1.0, (step + 1) / warm_steps) if warm_steps else 1.0
    # If the decay began within the warm-up, the full rate would never be reached.
    begin = max(warm_steps, config.flat_share * steps if config.schedule is Schedule.wsd else 0)
    return config.lr * min(warm, _decay(step, begin, steps, config))


def _decay(step: int, begin: float, steps: int, config: OptimizerConfig) -> float:
    """Factor of the learning rate: 1 before `begin`, `min_share` at `steps` unless constant."""
    if step < begin or config.schedule is Schedule.constant:
        return 1.0
    left = (steps - step) / (steps - begin)
    if config.schedule is Schedule.cosine:
        left = (1 - math.cos(math.pi * left)) / 2
    return config.min_share + (1 - config.min_share) * left


def steps_for(samples: int, batch: int, epochs: float) -> int:
    """Number of steps, at `batch` samples per step, to see `samples` at least `epochs` times on average.

    steps_for(7607, 256, 2.5) == 75
    """
    return math.ceil(Fraction(str(epochs)) * samples / batch)


def _ceil(share: float, steps: int) -> int:
    return math.ceil(Fraction(str(share)) * steps)
