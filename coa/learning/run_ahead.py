"""How far the engines run ahead of the learners, within the staleness window.

Where learners are the slower half, finished groups wait for them until the window is full, and every sample is as
stale as the window allows. That buys nothing: learners are as busy with one batch in reserve as with four. So the
engines begin with one batch in reserve. As soon as learners find less than a batch, the engines may use the whole
window; and what has then lain in reserve beyond one batch for a whole window of versions is no longer admitted ahead.
"""

from collections import deque

RESERVE = 1.0
"""Batches that should lie ready beside the one that learners begin."""


class RunAhead:
    """Decides from the finished groups that learners find, batch by batch, how many groups to hold back."""

    def __init__(self, groups_per_batch: int, max_staleness: int) -> None:
        self._size = groups_per_batch
        self._reserve = round(RESERVE * groups_per_batch)
        self._most = max_staleness * groups_per_batch
        self._surplus: deque[int] = deque(maxlen=max_staleness + 1)
        self.held_back = max(0, self._most - self._reserve)
        """Groups fewer than the window allows that may be admitted. With at most `max_staleness` batches held back,
        the window of the synchronous trainer remains, in which each batch can still be filled."""

    def begin_batch(self, stock: int) -> None:
        """Learners begin a batch. stock: finished groups, the batch's own included."""
        if stock < self._size:
            self.held_back = 0
            self._surplus.clear()
            return
        self._surplus.append(stock - self._size - self._reserve)
        if len(self._surplus) == self._surplus.maxlen and min(self._surplus) > 0:
            self.held_back = min(self._most, self.held_back + min(self._surplus))
            self._surplus.clear()  # all were counted before this took effect
