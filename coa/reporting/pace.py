"""Estimates the remaining time of a stage from its recent speed."""

from collections import deque

MARKS = 32
"""Number of progress marks from which the remaining time is estimated."""


class Pace:
    """The remaining time. Progress is counted from the first mark, so work done before a resume does not count."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS)

    def mark(self, done: int, now: float) -> None:
        """Records that `done` is done at `now`, in seconds of any monotonic clock."""
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()  # restarted from a checkpoint
        if not self._marks or done > self._marks[-1][1]:
            self._marks.append((now, done))

    def left(self, total: int, now: float) -> float | None:
        """Seconds until `total` is done; None before there is anything to judge by."""
        if len(self._marks) < 2:
            return None
        (first, done_first), (last, done) = self._marks[0], self._marks[-1]
        each = (last - first) / (done - done_first)
        return max(0.0, (total - done) * each - (now - last))
