"""The attempts of a learner group: each begins at the newest whole checkpoint, and a failure leads to another one.

mend the folder ──► attempt ──(a rank fails)──► mend the folder ──► attempt ...    until too many fail without progress

Ray Train starts a failed group again by itself, but from a checkpoint that it does not verify, and with a count of
failures that never starts anew.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

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
