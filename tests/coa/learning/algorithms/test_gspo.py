"""GSPO by hand: ratio and clip belong to the sequence."""

import math

import pytest

from coa.learning.algorithms.base import SEQUENCES
from coa.learning.algorithms.gspo import Gspo
from coa.learning.losses import LossConfig, Proximal
from tests.support.tokens import loss_by, targets_of

WIDE = Gspo(LossConfig(correction_cap=2.0, proximal=Proximal.recomputed), clip_low=0.2, clip_high=0.28)


def test_every_token_of_a_sequence_has_the_ratio_of_their_mean() -> None:
    """Two sequences, of two tokens and of one; equation 10 of the paper: s_i A_i / |y_i| per token."""
    targets = targets_of([0, 0, 1], reinforce=[2.0, 2.0, -1.0], rollout=[-1.0, -1.0, -1.0])
    moved = [-1.0 + 0.3, -1.0 - 0.1, -1.0 + 0.05]
    loss, gradient, _, sums = loss_by(WIDE, targets, moved, proximal=[-1.0] * 3)
    first, second = math.exp(0.1), math.exp(0.05)
    assert loss == pytest.approx(-(2.0 * first - second) / 2, rel=1e-6)
    assert gradient == pytest.approx([-2.0 * first / 4, -2.0 * first / 4, second / 2], rel=1e-6)
    assert sums.metrics["ratio_mean"].total.item() / 2 == pytest.approx((first + second) / 2, rel=1e-6)


def test_a_sequence_that_went_too_far_is_clipped_as_a_whole() -> None:
    targets = targets_of([0, 0, 1, 1], reinforce=[1.0, 1.0, -1.0, -1.0], rollout=[-1.0] * 4)
    # Means 0.5 and 0.5: likelier and better is clipped, likelier and worse is not.
    moved = [-1.0 + 1.4, -1.0 - 0.4, -0.5, -0.5]
    loss, gradient, _, sums = loss_by(WIDE, targets, moved, proximal=[-1.0] * 4)
    assert gradient[:2] == [0.0, 0.0]
    assert loss == pytest.approx(-(1.28 - math.exp(0.5)) / 2, rel=1e-6)
    assert sums.metrics["clip_fraction"].total.item() == 1
    # Clips of a thousandth are the default: a step that no token's clip would notice.
    _, tight, _, sums = loss_by(Gspo(), targets_of([0], reinforce=[1.0], rollout=[-1.0]), [-0.999], proximal=[-1.0])
    assert tight == [0.0]


@pytest.mark.parametrize(("gap", "weight", "capped"), [(math.log(1.5), 1.5, 0), (3.0, 2.0, 1)])
def test_the_age_of_the_sampling_policy_weighs_a_sequence(gap: float, weight: float, capped: int) -> None:
    targets = targets_of([0, 0], reinforce=[1.0, 1.0], rollout=[-1.0 - 2 * gap, -1.0])
    loss, gradient, _, sums = loss_by(WIDE, targets, [-1.0, -1.0])
    assert loss == pytest.approx(-weight, rel=1e-6)
    assert gradient == pytest.approx([-weight / 2, -weight / 2], rel=1e-6)
    assert sums.metrics["truncated_weight_fraction"].total.item() == capped


def test_a_long_sequence_weighs_as_much_as_a_short_one() -> None:
    targets = targets_of([0] * 9 + [1], reinforce=[1.0] * 10, rollout=[-1.0] * 10)
    _, gradient, _, sums = loss_by(WIDE, targets, [-1.0] * 10)
    assert sum(gradient[:9]) == pytest.approx(gradient[9])
    assert sums.terms["policy_loss"].per == SEQUENCES
