"""Decides which task is played next, such that a restart neither skips a task nor trains a task twice.

take ──► in flight ──► done                     trained, or dropped for good
           │   └─────► fail ──► later again     a few times
           └ a restart: issued again, before anything new
"""

from collections import Counter, deque
from collections.abc import Sequence

Cursor = list[int]
"""The state of an Issue in a checkpoint: the next new index, then the indices in flight, ascending."""


class TaskStream:
    """Hands out the indices of an endless stream of tasks, and repeats those whose group failed.

    A task that failed is issued again only after `apart` new ones, since a task that always fails must not hold up the
    others, and it is played `tries` times in all at most. Near the end of a run, tasks that failed come before new
    ones: no task is left unfinished.
    """

    def __init__(self, cursor: int | Sequence[int] = 0, *, apart: int = 1, tries: int = 3) -> None:
        """cursor: from a checkpoint. A number alone is the next new index, with no task in flight."""
        self._next, *flying = [cursor] if isinstance(cursor, int) else cursor
        self._apart, self._tries = apart, tries
        self._flying = dict.fromkeys(flying)
        self._again = deque((0, index) for index in flying)
        """(n, index): the task `index` is issued again as soon as the next new index is n or more."""
        self._failed: Counter[int] = Counter()

    def take(self, room: int | None = None) -> int:
        """The index of the task to play now. room: groups that may still be admitted before the end, this one
        included; None: without end."""
        last_chance = room is not None and room <= len(self._again)
        if self._again and (last_chance or self._again[0][0] <= self._next):
            return self._again.popleft()[1]
        self._flying[self._next] = None
        self._next += 1
        return self._next - 1

    def done(self, index: int) -> None:
        """The task is finished: its group is in a batch, or was dropped because nothing can be learnt from it."""
        del self._flying[index]

    def fail(self, index: int, *, counted: bool = True) -> bool:
        """Records an infrastructure failure of the task's group. Returns whether the task will be issued again; if not,
        it is given up.

        `counted`: whether the failure uses up one of the task's tries; False while all tasks fail.
        """
        self._failed[index] += counted
        if self._failed[index] >= self._tries:
            self.done(index)
            return False
        self._again.append((self._next + self._apart, index))
        return True

    def stop(self, indices: Sequence[int]) -> None:
        """The groups of these tasks were cancelled: they are issued again before all others."""
        self._again.extendleft((0, index) for index in reversed(indices))

    def cursor(self) -> Cursor:
        return [self._next, *sorted(self._flying)]
