"""Two evaluations of the same tasks, compared task by task."""

from pathlib import Path

import pytest

from coa.errors import UserError
from coa.types import Task
from jobs.run.compared import EPISODES, differences, rates_in, rates_of
from jobs.run.journal import Episodes
from jobs.stages.attempts import write_evaluation
from tests.support.fakes import played


def tasks(count: int, ask: str = "?") -> list[Task]:
    return [Task(id=f"t{n}", question=f"{n} {ask}", answers=("1",), profile="code", family="f") for n in range(count)]


def rights(text: str) -> Episodes:
    """ "10 1" is one attempt at the first and second task each, and one at the third that has none."""
    return {f"t{n}": (played(one == "1"),) for n, one in enumerate(text)}


def test_the_difference_is_taken_task_by_task(tmp_path: Path) -> None:
    write_evaluation(tmp_path / EPISODES, tasks(4), rights("0001"), {})
    before = rates_in(tmp_path, tasks(4))
    assert before == {"greedy": {"t0": 0.0, "t1": 0.0, "t2": 0.0, "t3": 1.0}}
    found = differences(rates_of(rights("1111"), rights("1111")), before)
    assert list(found) == ["greedy"], "the other one has no sampled attempts"
    assert (found["greedy"]["mean"], found["greedy"]["n"]) == (0.75, 4)
    low, high = found["greedy"]["ci95"]
    assert low == pytest.approx(0.75 - 1.959964 * 0.25)
    assert high == pytest.approx(0.75 + 1.959964 * 0.25)


def test_only_an_evaluation_on_the_same_tasks_is_compared_with(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=rf"^--against {tmp_path}: no evaluation there \(no episodes\.parquet\)$"):
        rates_in(tmp_path, tasks(2))
    write_evaluation(tmp_path / EPISODES, tasks(2), rights("01"), {})
    for other in (tasks(3), tasks(2, "!")):
        with pytest.raises(UserError, match=r"that is an evaluation on other tasks$"):
            rates_in(tmp_path, other)
    write_evaluation(tmp_path / EPISODES, tasks(1), rights("0"), {})
    with pytest.raises(UserError, match=r"a difference needs at least 2 tasks$"):
        rates_in(tmp_path, tasks(1))
