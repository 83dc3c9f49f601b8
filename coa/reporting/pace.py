"""Estimates the remaining time of a stage from its recent speed."""

from collections import deque

MARKS = 32
"""Number of progress marks from which the remaining time is estimated."""
LEAST_MARKS = 3
"""Minimum number of marks: two spans, since a single one may be what was prepared during the start."""
APART_S = 1.0
"""Minimum seconds between two marks: of much work that ends within a moment, only the last is marked."""


class Pace:
    """The remaining time. The pace is that of this process, after the first work was done: how long the start and the
    first step took says nothing about the rest."""

    def __init__(self) -> None:
        self._began: int | None = None
        """The count that was reached before this process began, or before the work went back to a checkpoint."""
        self._done = 0
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS)

    def mark(self, done: int, now: float) -> None:
        """Records that `done` is done at `now`, in seconds of any monotonic clock."""
        if self._began is None or done < self._done:
            self._began = done
            self._marks.clear()
        self._done = done
        if done == self._began or (self._marks and done == self._marks[-1][1]):
            return
        if len(self._marks) > 1 and now - self._marks[-2][0] < APART_S:
            self._marks.pop()
        self._marks.append((now, done))

    def seconds_left(self, total: int, now: float) -> float | None:
        """Estimated seconds until `total` is done; None while there are too few marks."""
        if len(self._marks) < LEAST_MARKS:
            return None
        (first, done_first), (last, done) = self._marks[0], self._marks[-1]
        each = (last - first) / (done - done_first)
        if done >= total:
            return 0.0
        # A step that takes longer than those before does not bring the end nearer.
        return (total - done) * each - min(now - last, each)
