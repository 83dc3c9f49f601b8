"""PPO by hand: advantages from values, over the tokens that the policy sampled."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coa.learning.algorithms.ppo import Ppo
from tests.support.tokens import loss_by, targets_of

QUICK = settings(derandomize=True, max_examples=50, deadline=None, database=None)
PLAIN = Ppo()


def test_with_lambda_one_the_advantage_is_the_return_less_the_value() -> None:
    targets = targets_of([0, 0, 0], reinforce=[1.0] * 3, old_values=[0.25, 0.5, 0.75])
    assert PLAIN.gae(targets).tolist() == [0.75, 0.5, 0.25]


def test_with_lambda_zero_it_is_the_step_to_the_next_value() -> None:
    targets = targets_of([0, 0, 0], reinforce=[1.0] * 3, old_values=[0.25, 0.5, 0.875])
    assert Ppo(gae_lambda=0.0).gae(targets).tolist() == [0.25, 0.375, 0.125]
    assert Ppo(gae_lambda=0.0, gamma=0.5).gae(targets).tolist() == [0.0, -0.0625, 0.125]


def test_samples_know_nothing_of_each_other_and_demonstrations_nothing_of_values() -> None:
    targets = targets_of(
        [0, 0, 1, 2, 2],
        sampled=[True, True, False, True, True],
        reinforce=[1.0, 1.0, 0.0, 0.0, 0.0],
        old_values=[0.5, 0.5, 9.0, 0.25, 0.25],
    )
    assert PLAIN.gae(targets).tolist() == [0.5, 0.5, 0.0, -0.25, -0.25]
    assert PLAIN.totals(targets) == {"advantages": 0.5, "squares": 0.625, "count": 4.0}


@QUICK
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    gamma=st.floats(0, 1),
    gae_lambda=st.floats(0, 1),
    seed=st.integers(0, 9),
)
def test_it_is_the_discounted_sum_of_its_definition(
    lengths: list[int], gamma: float, gae_lambda: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    values = [rng.normal(size=n).tolist() for n in lengths]
    rewards = rng.normal(size=len(lengths)).tolist()
    expected: list[float] = []
    for its, reward in zip(values, rewards, strict=True):
        n = len(its)
        delta = [(reward if t == n - 1 else gamma * its[t + 1]) - its[t] for t in range(n)]
        expected += [sum((gamma * gae_lambda) ** (s - t) * delta[s] for s in range(t, n)) for t in range(n)]
    targets = targets_of(
        [i for i, n in enumerate(lengths) for _ in range(n)],
        reinforce=[reward for reward, n in zip(rewards, lengths, strict=True) for _ in range(n)],
        old_values=[value for its in values for value in its],
    )
    found = Ppo(gamma=gamma, gae_lambda=gae_lambda).gae(targets).tolist()
    assert found == pytest.approx(expected, abs=1e-5)


def test_the_policys_loss_takes_the_advantage_and_the_values_loss_the_return() -> None:
    targets = targets_of([0, 0], reinforce=[1.0, 1.0], rollout=[-1.0, -2.0], old_values=[0.5, 0.25])
    loss, gradient, by_value, _ = loss_by(PLAIN, targets, [-1.0, -2.0], values=[0.5, 0.25])
    assert gradient == [-0.25, -0.375]
    # Weight 0.1 of (value - 1)^2 / 2, per token.
    assert by_value == pytest.approx([0.1 * -0.5 / 2, 0.1 * -0.75 / 2])
    assert loss == pytest.approx((-(0.5 + 0.75) + 0.1 * (0.25 + 0.5625) / 2) / 2)


def test_a_value_that_has_moved_far_is_pulled_back_only() -> None:
    targets = targets_of([0, 1], reinforce=[1.0, 0.0], old_values=[0.0, 0.0])
    # Both have moved by 0.5, beyond 0.2: the first toward its return, the second away from it.
    _, _, by_value, _ = loss_by(PLAIN, targets, [-1.0, -1.0], values=[0.5, 0.5])
    assert by_value == pytest.approx([0.0, 0.1 * 0.5 / 2])


def test_advantages_are_whitened_over_the_batch_and_not_over_the_micro_batch() -> None:
    targets = targets_of([0, 1], reinforce=[1.0, 3.0], rollout=[-1.0, -1.0])
    whole = {"tokens": 4.0, "sampled": 4.0, "advantages": 8.0, "squares": 20.0, "count": 4.0}  # mean 2, deviation 1
    _, gradient, _, _ = loss_by(Ppo(whiten=True), targets, [-1.0, -1.0], totals=whole)
    assert gradient == pytest.approx([1 / 4, -1 / 4])


def test_what_the_driver_gives_is_the_reward_and_every_group_is_kept() -> None:
    group: Any = [SimpleNamespace(grade=1.0, reward=reward) for reward in (1.0, 1.0, 0.5)]
    assert PLAIN.advantages(group).tolist() == [1.0, 1.0, 0.5]
    assert PLAIN.keep(group)


def test_a_token_of_a_success_is_never_made_less_likely_for_a_value_that_no_return_has() -> None:
    """A head that reads hidden states overshoots at some of them; the best reward of the batch is 1."""
    [success, failure] = (
        targets_of([0], reinforce=[reward], rollout=[-1.0], old_values=[value])
        for reward, value in ((1.0, 1.6), (0.0, -0.4))
    )
    assert PLAIN.gae(success).tolist() == [pytest.approx(-0.6)]
    assert PLAIN.gae(replace(success, bounds=(0.0, 1.0))).tolist() == [0.0]
    assert PLAIN.gae(replace(failure, bounds=(0.0, 1.0))).tolist() == [0.0]
    assert replace(PLAIN, gamma=0.9).gae(replace(success, bounds=(1.0, 1.0))).tolist() == [0.0]
