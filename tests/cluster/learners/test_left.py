"""Placement groups that a dead controller of learners has left."""

from typing import Any

import pytest
import ray
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from cluster.learners.left import remove_left_groups

CPUS = 0.25


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
