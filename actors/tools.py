"""The tool executor: every tool call of every episode goes through one of these.

call -> known? -> in the cache, or being made? -> wait for a place -> the tool, within its time -> text | ToolDown
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coa.errors import ToolDown
from coa.tools.base import Tool, ToolCall


@dataclass(frozen=True)
class ExecutorConfig:
    concurrency: int = 16
    """Calls of one tool at the same time; the others wait."""
    call_s: float = 30.0
    """Seconds for one call, waiting for a place not counted; over it the tool counts as down."""
    cache_entries: int = 100_000
    """Observations kept; the oldest go first."""


@dataclass(frozen=True, slots=True)
class ToolStats:
    calls: int = 0
    """All calls, those answered from the cache included."""
    hits: int = 0
    """Calls answered from the cache, or by an equal call that was under way."""
    failures: int = 0
    """Calls that ended in ToolDown."""
    seconds: float = 0.0
    """Spent inside the tool, summed over calls."""


@runtime_checkable
class Closable(Protocol):
    def close(self) -> Awaitable[None]: ...


class ToolExecutor:
    """`make_tools` is called where the executor lives, so that tools with connections need not travel."""

    def __init__(self, make_tools: Callable[[], Mapping[str, Tool]], config: ExecutorConfig | None = None) -> None:
        self._config = config or ExecutorConfig()
        self._tools = dict(make_tools())
        self._places = {name: asyncio.Semaphore(self._config.concurrency) for name in self._tools}
        self._cache: dict[ToolCall, asyncio.Task[str]] = {}
        self._counters = {name: dict.fromkeys(("calls", "hits", "failures"), 0) for name in self._tools}
        self._seconds = dict.fromkeys(self._tools, 0.0)

    async def call_many(self, calls: Sequence[ToolCall]) -> list[str | ToolDown]:
        """An observation's text for each call, in order; a tool that could not work is a value, not an exception."""
        return await asyncio.gather(*(self._call(call) for call in calls))

    def stats(self) -> dict[str, ToolStats]:
        return {name: ToolStats(**self._counters[name], seconds=self._seconds[name]) for name in self._tools}

    async def close(self) -> None:
        for tool in self._tools.values():
            if isinstance(tool, Closable):
                await tool.close()

    async def _call(self, call: ToolCall) -> str | ToolDown:
        if call.tool not in self._tools:
            return f"there is no tool {call.tool}"
        counters = self._counters[call.tool]
        counters["calls"] += 1
        try:
            if not self._tools[call.tool].cacheable:
                return await self._run(call)
            if call in self._cache:
                counters["hits"] += 1
            else:
                self._start(call)
            # A caller that is cancelled must not take the call away from the others that wait for it.
            return await asyncio.shield(self._cache[call])
        except ToolDown as down:
            counters["failures"] += 1
            return down

    def _start(self, call: ToolCall) -> None:
        task = asyncio.ensure_future(self._run(call))
        self._cache[call] = task
        task.add_done_callback(lambda done: self._forget(call, done))
        if len(self._cache) > self._config.cache_entries:
            self._cache.pop(next(iter(self._cache)))

    def _forget(self, call: ToolCall, done: asyncio.Task[str]) -> None:
        """Failures are not kept: the next equal call tries again."""
        failed = done.cancelled() or done.exception() is not None
        if failed and self._cache.get(call) is done:
            del self._cache[call]

    async def _run(self, call: ToolCall) -> str:
        async with self._places[call.tool]:
            started = time.perf_counter()
            try:
                async with asyncio.timeout(self._config.call_s):
                    return await self._tools[call.tool](call.argument)
            except TimeoutError as error:
                raise ToolDown(f"{call.tool}: nothing within {self._config.call_s:g} s") from error
            finally:
                self._seconds[call.tool] += time.perf_counter() - started
