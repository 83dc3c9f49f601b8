"""The attempts of a learner group: each begins at the newest whole checkpoint, and a failure leads to another one.

mend the folder ──► attempt ──(a rank fails)──► mend the folder ──► attempt ...    until too many fail without progress

Ray Train starts a failed group again by itself, but from a checkpoint that it does not verify, and with a count of
failures that never starts anew. When its controller dies, it leaves placement groups: Ray removes that of an actor that
has died only when its job ends, and the detached actor that Ray Train starts to remove it earlier may be lost with the
controller, as where a machine runs out of memory. Until then nothing else gets those resources.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from actors.handles import Handle, kill
from coa.errors import InfrastructureError
from coa.storage.checkpoints import Mended

CONTROLLER_DIED = "the controller of Ray Train died"
AGAIN = "the same command resumes from the last checkpoint"
ABORT_S = 10.0
"""Maximum seconds that Ray Train's controller has to end its workers, before it is killed."""
Result = TypeVar("Result")


@dataclass
class Failures:
    """Counts the failures since learners came further than before. Pure."""

    most: int
    """Maximum number of failures without a newer checkpoint."""
    furthest: int = 0
    """The highest version of a whole checkpoint so far."""
    count: int = 0

    def reached(self, version: int | None) -> None:
        """The newest whole checkpoint is of this version; None if there is none."""
        if version is not None and version > self.furthest:
            self.furthest, self.count = version, 0

    def failed(self) -> bool:
        """Takes in one more failure; whether there is to be another attempt."""
        self.count += 1
        return self.count <= self.most


def attempts(
    attempt: Callable[[], Result],
    mend: Callable[[], Mended],
    *,
    most_failures: int,
    wanted: Callable[[], bool],
    warn: Callable[[str], object],
) -> Result:
    """Runs `attempt` until one ends well. Raises what ended the last one that is permitted, or that was under way when
    learners were no longer `wanted`. warn: takes one line about damaged checkpoints."""
    from ray.exceptions import ActorDiedError
    from ray.train import WorkerGroupError

    failures = Failures(most_failures)

    def begin() -> None:
        mended = mend()
        if caution := mended.caution():
            warn(caution)
        failures.reached(mended.version)

    begin()
    while True:
        try:
            return attempt()
        except (WorkerGroupError, ActorDiedError) as error:  # of a rank, or of Ray Train's controller and its ranks
            if not wanted():
                raise
            begin()
            if not failures.failed():
                if isinstance(error, ActorDiedError):
                    raise InfrastructureError(f"{CONTROLLER_DIED} {failures.count} times: {AGAIN}") from error
                raise


def abort(controller: Handle) -> None:
    """Ends Ray Train's controller and its workers. If it is killed at once, the detached actor that watches it stays
    on the cluster for ever."""
    import ray
    from ray.exceptions import GetTimeoutError, RayActorError

    with suppress(RayActorError, GetTimeoutError):
        ray.get(controller.abort.remote(), timeout=ABORT_S)
    kill(controller)


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
