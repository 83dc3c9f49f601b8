"""Learners that fail are started again, from a whole checkpoint, as long as they come further; placement groups that a
dead controller of theirs has left are removed."""

from collections.abc import Callable
from typing import Any

import pytest
import ray
from ray.exceptions import ActorDiedError
from ray.train import ControllerError, TrainingFailedError, WorkerGroupError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from cluster.learners.attempts import attempts, remove_left_groups
from coa.errors import InfrastructureError
from coa.storage.checkpoints import Mended

FAILED = WorkerGroupError("rank 0 failed", {0: RuntimeError("rank 0")})
Newest = tuple[int | None, TrainingFailedError | ActorDiedError | None]

CPUS = 0.25


class Run:
    """Learners whose attempts end as they are told."""

    def __init__(self, *told: Newest) -> None:
        """told: for each attempt, the newest whole checkpoint when it begins, and what it ends with."""
        self.told, self.begun, self.said = list(told), 0, list[str]()
        self.wanted: Callable[[], bool] = lambda: True

    def mend(self) -> Mended:
        version, _ = self.told[self.begun]
        return Mended(version, {})

    def attempt(self) -> str:
        _, error = self.told[self.begun]
        self.begun += 1
        if error is not None:
            raise error
        return "done"

    def play(self, most_failures: int) -> str:
        return attempts(
            self.attempt, self.mend, most_failures=most_failures, wanted=lambda: self.wanted(), warn=self.said.append
        )


def test_failures_are_counted_anew_from_each_newer_checkpoint() -> None:
    run = Run((None, FAILED), (2, FAILED), (4, FAILED), (6, FAILED), (6, FAILED), (8, None))
    assert run.play(2) == "done"
    assert run.begun == 6


@pytest.mark.parametrize(
    "versions",
    [(None, None, None), (5, 5, 5), (4, 6, 6, 6), (6, 4, 6, 6), (6, 4, None)],
    ids=["none", "the same", "the same later", "one made again", "older ones"],
)
def test_failures_without_a_newer_checkpoint_end_the_learners(versions: tuple[int | None, ...]) -> None:
    run = Run(*[(version, FAILED) for version in versions], (None, None))
    with pytest.raises(WorkerGroupError):
        run.play(2)
    assert run.begun == 3


def test_a_resumed_run_has_its_failures_before_it() -> None:
    with pytest.raises(WorkerGroupError):
        Run((8, FAILED), (8, FAILED), (8, None)).play(1)


def test_what_is_no_failure_of_ranks_ends_the_learners_at_once() -> None:
    run = Run((2, ControllerError(OSError("no disk"))), (4, None))
    with pytest.raises(ControllerError):
        run.play(3)
    assert run.begun == 1


def test_a_controller_that_died_is_started_again_as_often_as_learners_may_fail() -> None:
    run = Run((None, ActorDiedError()), (None, ActorDiedError()), (None, None))
    assert run.play(2) == "done"
    told = r"^the controller of Ray Train died 2 times: the same command resumes from the last checkpoint$"
    with pytest.raises(InfrastructureError, match=told):
        Run((None, ActorDiedError()), (None, ActorDiedError()), (None, None)).play(1)


def test_learners_that_are_no_longer_wanted_are_not_started_again() -> None:
    run = Run((2, FAILED), (4, None))
    run.wanted = lambda: False
    with pytest.raises(WorkerGroupError):
        run.play(3)
    assert run.begun == 1


def test_a_damaged_checkpoint_is_told_of_once() -> None:
    found = iter([Mended(4, {"checkpoint_6": "progress.json is missing"}), Mended(4, {})])
    said: list[str] = []
    ends = iter([FAILED, None])

    def attempt() -> None:
        if error := next(ends):
            raise error

    attempts(attempt, lambda: next(found), most_failures=1, wanted=lambda: True, warn=said.append)
    assert said == [
        "a damaged checkpoint is set aside, and learners start from the one of version 4 "
        "(checkpoint_6: progress.json is missing)"
    ]


@ray.remote(num_cpus=0)
class Controller:
    """Makes a placement group, as Ray Train's does."""

    def __init__(self) -> None:
        self.group: Any = None

    def reserve(self) -> str:
        self.group = placement_group([{"CPU": CPUS}])
        ray.get(self.group.ready())
        return self.group.id.hex()


def states(*ids: str) -> list[str]:
    table = placement_group_table()
    return [table[one]["state"] for one in ids]


@pytest.mark.usefixtures("ray_session")
def test_the_group_of_a_controller_that_died_is_removed_and_no_other() -> None:
    controllers: list[Any] = [Controller.remote(), Controller.remote()]
    dead, alive = controllers
    left, used = ray.get([dead.reserve.remote(), alive.reserve.remote()])
    own = placement_group([{"CPU": CPUS}])
    ray.get(own.ready())
    assert remove_left_groups() == 0
    ray.kill(dead)
    while not remove_left_groups():  # until Ray knows of its death
        pass
    assert states(left, used, own.id.hex()) == ["REMOVED", "CREATED", "CREATED"]
    assert remove_left_groups() == 0
    remove_placement_group(own)
    ray.kill(alive)
