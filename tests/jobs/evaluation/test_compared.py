"""Two evaluations of the same tasks, compared task by task."""

from dataclasses import replace
from pathlib import Path

import pytest

from coa.errors import UserError
from coa.reporting.statistics import paired_difference
from coa.types import Task
from jobs.evaluation.attempts import write_evaluation
from jobs.evaluation.compared import EPISODES, differences, gains, verdicts_in, verdicts_of
from jobs.evaluation.journal import Episodes
from tests.support.fakes import played


def tasks(count: int, ask: str = "?") -> list[Task]:
    return [Task(id=f"t{n}", question=f"{n} {ask}", answers=("1",), profile="code", family="f") for n in range(count)]


def rights(text: str) -> Episodes:
    """ "10 1" is one attempt at the first and second task each, and one at the third that has none."""
    return {f"t{n}": (played(one == "1"),) for n, one in enumerate(text)}


def test_the_difference_is_taken_task_by_task(tmp_path: Path) -> None:
    write_evaluation(tmp_path / EPISODES, tasks(4), rights("0001"), {})
    before = verdicts_in(tmp_path, tasks(4))
    assert before == {"greedy": {"t0": [False], "t1": [False], "t2": [False], "t3": [True]}}
    found = differences(verdicts_of(rights("1111"), rights("1111")), before)
    assert list(found) == ["greedy"], "the other one has no sampled attempts"
    assert (found["greedy"]["mean"], found["greedy"]["n"]) == (0.75, 4)
    assert found["greedy"] == paired_difference([1, 1, 1, 1], [0, 0, 0, 1])


def test_the_gains_of_a_run_are_of_what_was_measured_on_both_sides(tmp_path: Path) -> None:
    some = [replace(task, family=family) for task, family in zip(tasks(4), "aabb", strict=True)]
    before, after = tmp_path / "sft.parquet", tmp_path / "rl.parquet"
    write_evaluation(before, some, rights("0001"), {})
    write_evaluation(after, some, rights("1101"), rights("1111"))
    assert gains(before, after) == {
        "greedy": paired_difference([1, 1, 0, 1], [0, 0, 0, 1]),
        "families": {
            "a": {"greedy": paired_difference([1, 1], [0, 0])},
            "b": {"greedy": paired_difference([0, 1], [0, 1])},
        },
    }
    write_evaluation(before, some, {}, {"t0": rights("0")["t0"] * 3, **rights("0011")})
    assert gains(before, after)["pass_at_1"]["mean"] == 0.5
    assert "greedy" not in gains(before, after)
    before.unlink()
    assert gains(before, after) == {"families": {}}


def test_only_an_evaluation_on_the_same_tasks_is_compared_with(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^--against {tmp_path}: no evaluation there \(no episodes\.parquet\)$"):
        verdicts_in(tmp_path, tasks(2))
    write_evaluation(tmp_path / EPISODES, tasks(2), rights("01"), {})
    for other in (tasks(3), tasks(2, "!")):
        with pytest.raises(UserError, match=r"that is an evaluation on other tasks$"):
            verdicts_in(tmp_path, other)
    write_evaluation(tmp_path / EPISODES, tasks(1), rights("0"), {})
    with pytest.raises(UserError, match=r"a difference needs at least 2 tasks$"):
        verdicts_in(tmp_path, tasks(1))
