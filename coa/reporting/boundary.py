"""The boundary around what a run can do without: gauges, wandb, console, page, pictures.

It is the one place where any exception of a sink ends. The failure is said once, and the sink is left out from then on.
"""

import logging
from collections.abc import Callable
from threading import Lock
from typing import TypeVar

_log = logging.getLogger(__name__)
LONGEST_REASON = 200
T = TypeVar("T")


class SinkBoundary:
    """Runs the work of sinks, in any thread."""

    def __init__(self, say: Callable[[str], None] = _log.warning) -> None:
        """say: shows a line to the user."""
        self._say, self._left_out, self._lock = say, set[str](), Lock()

    def attempt(self, sink: str, work: Callable[[], object]) -> bool:
        """Whether the work was done. It is not begun if the sink has failed before.

        sink: its name in the line that the user sees.
        """
        if sink in self._left_out:
            return False
        try:
            work()
            return True
        except Exception as error:
            with self._lock:
                first = sink not in self._left_out
                self._left_out.add(sink)
            if first:
                _log.warning("%s failed", sink, exc_info=True)
                self._say(f"{sink} failed and is left out from now on; the run continues ({reason_of(error)})")
            return False

    def part(self, sink: str, make: Callable[[], T], instead: T) -> T:
        """Returns what `make` makes, or `instead` if the sink fails."""
        made = [instead]
        self.attempt(sink, lambda: made.append(make()))
        return made[-1]


def reason_of(error: BaseException) -> str:
    """One line: "UnicodeEncodeError: 'ascii' codec can't encode character"."""
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {first}"[:LONGEST_REASON] if first else type(error).__name__
