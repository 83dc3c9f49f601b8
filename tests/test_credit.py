"""Credit within a group, and the two kinds of samples."""

import numpy as np
import pytest

from coa.credit import credit, group_relative, informative, to_reinforce
from coa.imitation import to_imitate
from coa.types import Credited, Scored, Status, Trajectory


def trajectory() -> Trajectory:
    """The example of the type's docstring, sampled at versions 0 and 1."""
    return Trajectory(
        task_id="t",
        sample=0,
        token_ids=np.array([1, 2, 3, 4, 8, 9, 5], np.int32),
        by_policy=np.array([0, 0, 1, 1, 0, 0, 1], np.bool_),
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


def scored(reward: float) -> Scored:
    return Scored(trajectory=trajectory(), correct=reward > 0, well_formed=True, reward=reward)


def test_advantages_are_distances_from_the_mean_in_standard_deviations() -> None:
    # Mean 0.25, deviation sqrt(3)/4.
    assert group_relative([1, 0, 0, 0]) == pytest.approx([1.7320508, -0.5773503, -0.5773503, -0.5773503], abs=1e-5)
    assert group_relative([1, 0]) == pytest.approx([1, -1], abs=1e-5)
    assert group_relative([1, 0]).dtype == np.float32


def test_a_group_of_equals_is_no_better_and_no_worse_and_says_nothing() -> None:
    assert group_relative([0.7, 0.7, 0.7]) == pytest.approx([0, 0, 0], abs=1e-6)
    assert not informative([0.7, 0.7, 0.7])
    assert not informative([1.0])
    assert informative([0.0, 0.0, 1.0])
    assert informative([-0.5, 0.0])


def test_credit_keeps_the_groups_order() -> None:
    group = [scored(0.0), scored(1.0), scored(1.0), scored(0.0)]
    credited = credit(group)
    assert [one.scored for one in credited] == group
    assert [one.advantage for one in credited] == pytest.approx([-1, 1, 1, -1], abs=1e-5)


def test_the_advantage_is_on_the_policys_tokens_and_nowhere_else() -> None:
    sample = to_reinforce(Credited(scored=scored(1.0), advantage=0.75))
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 8, 9, 5]
    assert sample.trained.tolist() == [False, False, True, True, False, False, True]
    assert sample.reinforce.tolist() == [0, 0, 0.75, 0.75, 0, 0, 0.75]
    assert sample.imitate.tolist() == [0] * 7
    assert sample.sampled_logprobs.tolist() == [0, 0, -0.5, -0.25, 0, 0, -1]
    assert sample.versions.tolist() == [-1, -1, 0, 0, -1, -1, 1]
    assert (sample.reinforce.dtype, sample.imitate.dtype, len(sample)) == (np.float32, np.float32, 7)


def test_a_demonstration_is_imitated_on_the_policys_tokens_and_nowhere_else() -> None:
    sample = to_imitate(trajectory().token_ids, trajectory().by_policy)
    assert sample.token_ids.tolist() == [1, 2, 3, 4, 8, 9, 5]
    assert sample.trained.tolist() == [False, False, True, True, False, False, True]
    assert sample.imitate.tolist() == [0, 0, 1, 1, 0, 0, 1]
    assert sample.reinforce.tolist() == [0] * 7
    assert (sample.imitate.dtype, sample.reinforce.dtype) == (np.float32, np.float32)


def test_arrays_of_different_length_make_no_trajectory() -> None:
    good = {name: getattr(trajectory(), name) for name in Trajectory.__slots__}
    with pytest.raises(ValueError, match=r"differ in length: \[6, 7\]"):
        Trajectory(**{**good, "logprobs": np.zeros(6, np.float32)})
    with pytest.raises(ValueError, match="the prompt is never made by the policy"):
        Trajectory(**{**good, "prompt_length": 3})
