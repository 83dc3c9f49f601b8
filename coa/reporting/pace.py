"""Estimates the remaining time of a stage from its recent speed."""

from collections import deque

MARKS = 32
"""Changes of what is done that an estimate looks back over."""


class Pace:
    """The time left. It begins with what is done when it is first told, so what a resumed run found does not count."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque(maxlen=MARKS)

    def mark(self, done: int, now: float) -> None:
        """So much is done at `now`, in seconds of any clock that does not go back."""
        if self._marks and done < self._marks[-1][1]:
            self._marks.clear()  # begun again, from a checkpoint
        if not self._marks or done > self._marks[-1][1]:
            self._marks.append((now, done))

    def left(self, total: int, now: float) -> float | None:
        """Seconds until `total` is done; None before there is anything to judge by."""
        if len(self._marks) < 2:
            return None
        (first, done_first), (last, done) = self._marks[0], self._marks[-1]
        each = (last - first) / (done - done_first)
        return max(0.0, (total - done) * each - (now - last))
