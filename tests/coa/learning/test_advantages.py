"""Advantages within a group, and the two kinds of samples."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from coa.errors import UserError
from coa.learning.advantages import Rewarded, Spread, group_relative, informative
from coa.learning.algorithms.grpo import Grpo
from coa.learning.algorithms.ppo import Ppo
from coa.learning.samples import to_imitate, to_samples
from coa.types import NO_GROUP, Floats, Scored, Status, Trajectory


def trajectory() -> Trajectory:
    """The example of the type's docstring, sampled at versions 0 and 1."""
    return Trajectory(
        task_id="t",
        sample=0,
        token_ids=np.array([1, 2, 3, 4, 8, 9, 5], np.int32),
        action_mask=np.array([0, 0, 1, 1, 0, 0, 1], np.bool_),
        logprobs=np.array([0, 0, -0.5, -0.25, 0, 0, -1], np.float32),
        versions=np.array([-1, -1, 0, 0, -1, -1, 1], np.int32),
        prompt_length=2,
        turns=2,
        tool_calls=("code",),
        status=Status.ANSWERED,
        answer="x",
        text="",
        transitions_hold=True,
    )


def scored(reward: float, grade: float | None = None) -> Scored:
    grade = reward if grade is None else grade
    return Scored(trajectory=trajectory(), grade=grade, correct=grade >= 1, well_formed=True, reward=reward)


def test_advantages_are_distances_from_the_mean_in_the_samples_standard_deviations() -> None:
    # Mean 0.25; the squares add up to 0.75, over 3: a deviation of 0.5.
    assert group_relative([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5], abs=1e-5)
    assert group_relative([1, 0]) == pytest.approx([0.5**0.5, -(0.5**0.5)], abs=1e-5)
    assert group_relative([1, 0]).dtype == np.float32
    assert group_relative([0.7]).tolist() == [0]


def test_a_group_of_equals_is_no_better_and_no_worse_and_says_nothing() -> None:
    assert group_relative([0.7, 0.7, 0.7]) == pytest.approx([0, 0, 0], abs=1e-6)
    assert not informative([scored(0.7)] * 3)
    assert not informative([scored(1.0)])
    assert informative([scored(0.0), scored(0.0), scored(1.0)])


def test_a_group_without_a_right_answer_is_dropped_whatever_its_length_costs() -> None:
    wrong = [*[scored(0.0, grade=0.0)] * 7, scored(-0.01, grade=0.0)]
    assert not Grpo().keep(wrong)
    assert Grpo().advantages(wrong).tolist() == [0] * 8
    right = [*[scored(1.0, grade=1.0)] * 7, scored(0.99, grade=1.0)]
    assert not Grpo().keep(right)
    assert not any(sample.reinforce.any() for sample in to_samples(right, Grpo(), 0))


def test_a_group_is_kept_for_its_grades_and_learnt_from_by_its_rewards() -> None:
    group = [scored(0.0, grade=0.0), scored(1.0, grade=1.0), scored(0.5, grade=1.0)]
    assert Grpo().keep(group)
    # Mean 0.5, deviation 0.5.
    assert Grpo().advantages(group) == pytest.approx([-1, 1, 0], abs=1e-5)
    # Right in the wrong form earns nothing, so nothing tells it from what is wrong.
    assert not Grpo().keep([scored(0.0, grade=0.0), scored(0.0, grade=1.0)])


def test_rewards_that_are_about_something_else_than_the_answer_can_be_kept_by_themselves() -> None:
    group = [scored(0.0, grade=0.0), scored(1.0, grade=0.0)]
    assert not Grpo().keep(group)
    brevity = Grpo(spread=Spread.reward)
    assert brevity.keep(group)
    assert brevity.advantages(group) == pytest.approx([-(0.5**0.5), 0.5**0.5], abs=1e-5)


def test_the_advantage_is_on_the_policys_tokens_and_nowhere_else() -> None:
    worse, better = to_samples([scored(0.0), scored(1.0)], Grpo(), 17)
    assert better.token_ids.tolist() == [1, 2, 3, 4, 8, 9, 5]
    assert better.loss_mask.tolist() == [False, False, True, True, False, False, True]
    assert better.reinforce == pytest.approx([0, 0, 0.5**0.5, 0.5**0.5, 0, 0, 0.5**0.5], abs=1e-5)
    assert worse.reinforce.tolist() == (-better.reinforce).tolist()
    assert better.imitate.tolist() == [0] * 7
    assert better.rollout_logprobs.tolist() == [0, 0, -0.5, -0.25, 0, 0, -1]
    assert better.versions.tolist() == [-1, -1, 0, 0, -1, -1, 1]
    assert (better.reinforce.dtype, better.imitate.dtype, len(better)) == (np.float32, np.float32, 7)
    assert (worse.group, better.group) == (17, 17)


def test_what_ran_out_of_tokens_is_left_out_and_still_compared_with() -> None:
    cut = scored(0.0)
    cut = replace(cut, trajectory=replace(cut.trajectory, status=Status.TRUNCATED, answer=""))
    group = [scored(1.0), cut, scored(0.0)]
    assert [sample.reinforce.max() for sample in to_samples(group, Grpo(), 0)] == pytest.approx(
        [1.1547, 0, 0], abs=1e-4
    )
    kept = to_samples(group, Grpo(), 0, mask_truncated=True)
    assert [sample.reinforce.sum() for sample in kept] == pytest.approx([3 * 1.1547, -3 * 0.57735], abs=1e-4)
    assert to_samples([cut, cut], Ppo(), 0, mask_truncated=True) == ()


def test_a_demonstration_is_imitated_on_the_policys_tokens_and_nowhere_else() -> None:
    sample = to_imitate(trajectory().token_ids, trajectory().action_mask)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 8, 9, 5]
    assert sample.loss_mask.tolist() == [False, False, True, True, False, False, True]
    assert sample.imitate.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert sample.reinforce.tolist() == [0] * 7
    assert (sample.imitate.dtype, sample.reinforce.dtype) == (np.float32, np.float32)
    assert sample.group == NO_GROUP


def test_arrays_of_different_length_make_no_trajectory() -> None:
    good = {name: getattr(trajectory(), name) for name in Trajectory.__slots__}
    with pytest.raises(ValueError, match=r"differ in length: \[6, 7\]"):
        Trajectory(**{**good, "logprobs": np.zeros(6, np.float32)})
    with pytest.raises(ValueError, match="the prompt is never made by the policy"):
        Trajectory(**{**good, "prompt_length": 3})


@dataclass(frozen=True)
class Odd(Grpo):
    """An algorithm of a user's own, with a mistake in its advantages."""

    found: Any = None

    def advantages(self, group: Sequence[Rewarded]) -> Floats:
        return self.found


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (np.array([np.nan, 1.0]), "[nan, 1.0]"),
        (np.array([-np.inf, 1.0], np.float32), "[-inf, 1.0]"),
        (np.array([1e39, 1.0]), "[1e+39, 1.0]"),
        (np.array([[1.0], [0.0]]), "[[1.0], [0.0]]"),
        (np.array([1.0]), "[1.0]"),
        (0.5, "0.5"),
        (["good", "bad"], "['good', 'bad']"),
    ],
    ids=["nan", "infinite", "too large for float32", "two axes", "too few", "no list", "no numbers"],
)
def test_advantages_that_are_no_finite_number_for_each_episode_are_named_with_their_task(
    found: object, said: str
) -> None:
    with pytest.raises(UserError) as refused:
        to_samples([scored(1.0), scored(0.0)], Odd(found=found), 3)
    assert str(refused.value) == (
        f"the advantages by Odd are {said} at task t, for the rewards 1, 0: expected a finite number for each episode"
    )


def test_advantages_may_be_a_list_of_whole_numbers() -> None:
    first, second = to_samples([scored(1.0), scored(0.0)], Odd(found=[2, -2]), 3)
    assert first.reinforce.tolist() == [0, 0, 2, 2, 0, 0, 2]
    assert (second.reinforce.min(), second.reinforce.dtype) == (-2, np.float32)
