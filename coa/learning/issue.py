"""Decides which task is played next, so that a restart skips no task and none is trained on twice.

take ──► in flight ──► done                     trained, or dropped for good
           │   └─────► fail ──► later again     a few times
           └ a restart: issued again, before anything new
"""

from collections import Counter, deque
from collections.abc import Sequence

Cursor = list[int]
"""What a checkpoint keeps of an Issue: the next new index, then those in flight, rising."""


class Issue:
    """Hands out the indices of an endless stream of tasks, and repeats those whose group failed.

    A task that failed is issued again only after `apart` new ones, since a task that always fails must not hold up the
    others, and it is played `tries` times in all at most.
    """

    def __init__(self, cursor: int | Sequence[int] = 0, *, apart: int = 1, tries: int = 3) -> None:
        """cursor: as a checkpoint keeps it. A number alone is the next new index, with nothing in flight."""
        self._next, *flying = [cursor] if isinstance(cursor, int) else cursor
        self._apart, self._tries = apart, tries
        self._flying = dict.fromkeys(flying)
        self._again = deque((0, index) for index in flying)
        """(n, index): the task `index` is issued again as soon as the next new index is n or more."""
        self._failed: Counter[int] = Counter()

    def take(self) -> int:
        """The index of the task to play now."""
        if self._again and self._again[0][0] <= self._next:
            return self._again.popleft()[1]
        self._flying[self._next] = None
        self._next += 1
        return self._next - 1

    def done(self, index: int) -> None:
        """The task is finished: its group is in a batch, or was dropped because nothing can be learnt from it."""
        del self._flying[index]

    def fail(self, index: int, *, counted: bool = True) -> bool:
        """The task's group met an infrastructure failure. Returns whether it will be issued again; else it is given up.

        `counted`: whether this uses up one of the task's tries. A failure does not while everything fails.
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
