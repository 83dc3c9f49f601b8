"""The groups of the stage that are played or wait for their batch, and the tasks that they are attempts at."""

import asyncio
from collections.abc import Sequence

from coa.learning.task_stream import TaskStream
from coa.types import Sample
from jobs.stages.reinforcement.ledger import AttemptLedger


class GroupsInFlight:
    """The groups that a `Window` counts: their attempts, tasks and samples."""

    def __init__(self) -> None:
        self._rolls: dict[int, asyncio.Future[None]] = {}
        self._tasks: dict[int, int] = {}
        """The index of each group's task, until it is settled what becomes of the task."""
        self._samples: dict[int, Sequence[Sample]] = {}

    def begin(self, group: int, index: int, roll: "asyncio.Future[None]") -> None:
        """roll: ends when the group has been played."""
        self._tasks[group], self._rolls[group] = index, roll
        roll.add_done_callback(lambda _: self._rolls.pop(group, None))

    def wait(self, group: int, samples: Sequence[Sample]) -> None:
        """The group waits for its batch."""
        self._samples[group] = samples

    def settle(self, group: int) -> None:
        """The group came to nothing, and its task is settled."""
        del self._tasks[group]

    def take(self, group: int) -> tuple[int, Sequence[Sample]]:
        """The index of the group's task, and its samples."""
        return self._tasks.pop(group), self._samples.pop(group)

    def stop(self, groups: Sequence[int], stream: TaskStream, ledger: AttemptLedger) -> list[int]:
        """Ends groups that no batch needs: their tasks are issued again before all others. Returns those that were
        still to be trained."""
        tasks = {group: self._tasks.pop(group) for group in groups if group in self._tasks}
        for group in groups:
            self._samples.pop(group, None)
            if roll := self._rolls.pop(group, None):
                roll.cancel()
        for group in tasks:
            ledger.stop(group)
        stream.stop(list(tasks.values()))
        return list(tasks)

    def clear(self) -> None:
        """All of it is void."""
        for roll in self._rolls.values():
            roll.cancel()
        self._rolls, self._tasks, self._samples = {}, {}, {}
