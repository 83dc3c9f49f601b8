"""Ends training that goes on without learning: one step after the other whose updates were all skipped. Pure."""

from dataclasses import dataclass

from coa.errors import NothingLearnt
from coa.learning.faults import Updated

MOST = 5
"""Number of steps in a row without an update at which training ends."""


@dataclass
class Skipping:
    total: int = 0
    """Number of skipped updates."""
    _in_a_row: int = 0
    """Number of the last steps whose updates were all skipped."""

    def step(self, report: Updated) -> None:
        """Counts a step; raises NothingLearnt if training is to end."""
        self.total += report.skipped
        self._in_a_row = self._in_a_row + 1 if report.skipped and not report.updates else 0
        if self._in_a_row == MOST:
            raise NothingLearnt(f"{MOST} steps in a row taught nothing; the last one: {report.not_finite}")
