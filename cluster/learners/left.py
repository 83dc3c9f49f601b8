"""Placement groups that a controller of Ray Train leaves when it dies.

Ray removes the placement group of an actor that has died only when its job ends, and the detached actor that Ray Train
starts to remove it earlier may be lost with the controller, as where a machine runs out of memory. Until then nothing
else gets those resources.
"""

from typing import Any


def remove_left_groups() -> int:
    """Removes the placement groups of this job that an actor made which has died; returns their number."""
    import ray
    from ray._private.state import state  # no public API tells who made a group
    from ray.core.generated.gcs_pb2 import PlacementGroupTableData  # pyright: ignore[reportAttributeAccessIssue]
    from ray.util.placement_group import PlacementGroup, remove_placement_group

    job = bytes.fromhex(ray.get_runtime_context().get_job_id())
    accessor = state._connect_and_get_accessor()
    left = 0
    for text in accessor.get_placement_group_table():
        group = PlacementGroupTableData.FromString(text)
        if is_left(group, job) and group.state != PlacementGroupTableData.REMOVED:
            remove_placement_group(PlacementGroup(ray.PlacementGroupID(group.placement_group_id)))
            left += 1
    return left


def is_left(group: Any, job: bytes) -> bool:
    """Whether an actor of the job made the group, and has died. The driver's own groups have no actor: an id of only
    ones."""
    made_by_actor = any(byte != 0xFF for byte in group.creator_actor_id)
    return group.creator_job_id == job and made_by_actor and group.creator_actor_dead
