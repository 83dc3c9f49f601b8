"""Which task comes next: a restart skips none, and none is learnt twice.

take ──► in flight ──► done                     trained, or dropped for good
           │   └─────► fail ──► later again     a few times
           └ a restart: issued again, before anything new
"""

from collections import Counter, deque
from collections.abc import Sequence

Cursor = list[int]
"""What a checkpoint keeps of an Issue: the next new index, then those in flight, rising."""


class Issue:
    """Indices of an endless stream of tasks. One that failed is issued again after so many new ones as `apart` says,
    since a task that always fails must not hold up the others; and no more than `tries` times in all."""

    def __init__(self, cursor: int | Sequence[int] = 0, *, apart: int = 1, tries: int = 3) -> None:
        """cursor: of a checkpoint; a number alone is where a stream stood of which nothing was in flight."""
        self._next, *flying = [cursor] if isinstance(cursor, int) else cursor
        self._apart, self._tries = apart, tries
        self._flying = dict.fromkeys(flying)
        self._again = deque((0, index) for index in flying)
        """(next new index from which on it is issued, index)"""
        self._failed: Counter[int] = Counter()

    def take(self) -> int:
        """The index of the task to play now."""
        if self._again and self._again[0][0] <= self._next:
            return self._again.popleft()[1]
        self._flying[self._next] = None
        self._next += 1
        return self._next - 1

    def done(self, index: int) -> None:
        """It is in a batch, or says nothing."""
        del self._flying[index]

    def fail(self, index: int, *, counted: bool = True) -> bool:
        """It met an infrastructure failure. True if it is issued again, False if it is given up.

        `counted`: whether this uses up one of its tries, which it does not while everything fails.
        """
        self._failed[index] += counted
        if self._failed[index] >= self._tries:
            self.done(index)
            return False
        self._again.append((self._next + self._apart, index))
        return True

    def cursor(self) -> Cursor:
        return [self._next, *sorted(self._flying)]
