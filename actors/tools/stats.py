"""Counts of the calls of a tool."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, fields


@dataclass(frozen=True, slots=True)
class ToolStats:
    calls: int = 0
    """All calls, those answered from a cache included."""
    hits: int = 0
    """Calls answered from memory."""
    disk_hits: int = 0
    """Calls answered from the disk."""
    joined: int = 0
    """Calls answered by an equal one that was under way."""
    failures: int = 0
    """Calls that ended in ToolDown."""
    timeouts: int = 0
    """Calls of the tool that were over its time."""
    defects: int = 0
    """Calls in which the tool raised what no tool should raise; they are among `failures`."""
    running: int = 0
    """Calls that are in the tool now."""
    waiting: int = 0
    """Calls that wait for a place now."""
    seconds: float = 0.0
    """Spent inside the tool, summed over calls."""
    histogram: Mapping[str, int] = field(default_factory=dict)
    """Calls by the seconds spent inside the tool (`coa.tools.seconds`), without those that were answered otherwise."""
    retries: int = 0
    """Requests that the tool sent again."""
    repeated: int = 0
    """Calls made again because their executor was lost during them."""
    lost: int = 0
    """Calls given up because their second executor was lost too."""
    own: Mapping[str, int] = field(default_factory=dict)
    """Counters of the tool itself, such as `attempts` and `retries: timeout` (`coa.http.client`)."""

    @property
    def ran(self) -> int:
        """Calls of the tool itself that have ended."""
        return sum(self.histogram.values())

    def __add__(self, other: "ToolStats") -> "ToolStats":
        """Stats of two executors together."""
        counts = {key: getattr(self, key) + getattr(other, key) for key in ADDED}
        histogram = Counter(self.histogram) + Counter(other.histogram)
        return ToolStats(**counts, own=Counter(self.own) + Counter(other.own), histogram=histogram)


ADDED = tuple(field.name for field in fields(ToolStats) if field.name not in ("own", "histogram"))
