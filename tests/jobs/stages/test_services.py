import asyncio
from collections.abc import Awaitable
from typing import Any

from actors.tools.executor import ToolStats
from jobs.stages.services import COUNTED, counts_since, tool_counts


class Remote:
    """The handle of an executor."""

    def __init__(self, **stats: ToolStats) -> None:
        self._stats, self.stats = stats, self

    def remote(self) -> Awaitable[dict[str, ToolStats]]:
        return asyncio.sleep(0, self._stats)


def counted(**counts: Any) -> dict[str, Any]:
    return {**dict.fromkeys(COUNTED, 0), "histogram": {}, **counts}


def test_counts_and_seconds_are_added_up_over_executors() -> None:
    one = Remote(a=ToolStats(calls=3, seconds=1.5, histogram={"1": 2, "0.5": 1}), b=ToolStats())
    other = Remote(a=ToolStats(calls=2, hits=1, seconds=1.0, histogram={"1": 1}))
    found = asyncio.run(tool_counts([one, other]))
    assert found == {"a": counted(calls=5, hits=1, seconds=2.5, histogram={"0.5": 1, "1": 3})}
    assert list(found["a"]["histogram"]) == ["0.5", "1"], "in the order of seconds"


def test_counts_of_a_stage_are_those_since_it_began() -> None:
    before = {"a": counted(calls=3, histogram={"1": 2, "2": 1}), "quiet": counted(calls=4, histogram={"1": 4})}
    new = counted(calls=1, histogram={"0.5": 1})
    now = {**before, "a": counted(calls=5, histogram={"1": 4, "2": 1}), "new": new}
    assert counts_since(before, now) == {"a": counted(calls=2, histogram={"1": 2}), "new": new}


def test_an_executor_that_counts_from_zero_again_takes_nothing_away() -> None:
    before, now = {"a": counted(calls=3, histogram={"1": 3})}, {"a": counted(calls=2, histogram={"2": 2})}
    assert counts_since(before, now) == {}
