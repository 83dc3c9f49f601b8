"""The tool executor, which makes the tool calls of all episodes.

call -> known id? -> in memory or under way? -> on disk? -> wait for a slot -> tool, with a timeout -> text | ToolDown
"""

import asyncio
import json
import logging
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol, runtime_checkable

from actors.tools.calls import KnownCalls
from actors.tools.stats import ToolStats
from coa.bounds import Above0, AtLeast1
from coa.errors import InfrastructureError, ToolDown, UserError
from coa.grading.programs import RUN_TEST
from coa.tools.base import Fleeting, Tool, ToolCall
from coa.tools.cache import DiskCache, Found, Memo
from coa.tools.client import RetryConfig
from coa.tools.mcp.binding import McpBinding
from coa.tools.mcp.tool import McpTool
from coa.tools.scaling import ToolScaling
from coa.tools.seconds import bucket_of
from coa.unicode import whole

logger = logging.getLogger(__name__)

CACHE_BYTES = 1 << 30
"""Maximum bytes in the folder of cached results; those stored longest ago are dropped."""


@dataclass(frozen=True)
class ExecutorConfig:
    """The processes that run tools: limits, caches and retries."""

    concurrency: AtLeast1 = 16
    """Maximum number of concurrent calls of one tool in an executor; further calls wait. Of programs that are graded
    (`run_test`) no more than the machine has cores, unless `concurrency_of` says so: they compute for all of their
    time."""
    concurrency_of: dict[str, AtLeast1] = field(default_factory=dict)
    """`concurrency` of individual tools: `{crawl_page: 64}`."""
    call_s: Above0 = 30.0
    """Maximum seconds for one call, not counting the wait for a slot; after that the tool counts as down."""
    call_s_of: dict[str, Above0] = field(default_factory=lambda: {"judge": 60.0, "chooser": 60.0, "run_test": 60.0})
    """`call_s` of individual tools: `{crawl_page: 200}`."""
    cache_entries: AtLeast1 = 100_000
    """Maximum number of tool results cached in memory; the oldest are dropped."""
    cache_dir: str | None = None
    """Folder of tool results cached across restarts; None disables this cache. The executors of a machine may share it.
    Results are keyed by a tool's settings, not its data: a changed corpus needs a new folder."""
    kept_results: AtLeast1 = 10_000
    """Maximum number of unacknowledged results that are kept, for example for engines that died; the oldest are
    dropped."""
    retry: RetryConfig = field(default_factory=RetryConfig)
    """How an episode repeats a call that failed."""
    scaling: ToolScaling = field(default_factory=ToolScaling)

    PATHS: ClassVar = ("cache_dir",)

    @property
    def limited(self) -> set[str]:
        """The tools that have individual limits."""
        return {*self.concurrency_of, *self.call_s_of}

    def limit_s(self, tool: str) -> float:
        return self.call_s_of.get(tool, self.call_s)

    def places(self, tool: str) -> int:
        most = min(self.concurrency, os.cpu_count() or 1) if tool == RUN_TEST else self.concurrency
        return self.concurrency_of.get(tool, most)


@runtime_checkable
class Closable(Protocol):
    def close(self) -> Awaitable[None]: ...


@runtime_checkable
class Checked(Protocol):
    """A tool that can check its configuration against the services that it uses."""

    def check(self) -> Awaitable[None]:
        """Raises UserError if the tool can't work as configured."""
        ...


@runtime_checkable
class Counting(Protocol):
    def counts(self) -> Mapping[str, int]: ...


@runtime_checkable
class Fingerprinted(Protocol):
    """A tool whose observations may be cached on disk: they depend only on the call and on `fingerprint`."""

    fingerprint: str


COUNTED = ("calls", "disk_hits", "failures", "timeouts", "defects", "running", "waiting")
"""Counters that the executor keeps for each tool."""


class ToolExecutor(KnownCalls):
    """Runs tool calls. `make_tools` is called in the executor's process, so that tools with connections need not be
    pickled."""

    def __init__(self, make_tools: Callable[[], Mapping[str, Tool]], config: ExecutorConfig | None = None) -> None:
        self._config = config or ExecutorConfig()
        super().__init__(self._config.kept_results)
        self._mistake = ""
        self._tools: dict[str, Tool] = {}
        try:
            self._tools |= make_tools()
        except UserError as error:  # Ray would wrap it if it were raised in an actor's constructor
            self._mistake = str(error)
        self._places = {name: asyncio.Semaphore(self._config.places(name)) for name in self._tools}
        self._memo: Memo[str] = Memo(
            self._config.cache_entries, keep=lambda text: not isinstance(text, Fleeting), abandon=True
        )
        folder = self._config.cache_dir
        self._disk = None if folder is None else DiskCache(folder, CACHE_BYTES)
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in self._tools}
        self._seconds = dict.fromkeys(self._tools, 0.0)
        self._histograms: dict[str, Counter[str]] = {name: Counter() for name in self._tools}

    async def mistake(self) -> str:
        """The configuration error that prevents using the tools; empty if there is none."""
        try:
            for tool in self._tools.values():
                if isinstance(tool, Checked):
                    await tool.check()
        except UserError as error:
            self._mistake = str(error)
        return self._mistake

    async def call_many(self, calls: Sequence[ToolCall]) -> list[str | ToolDown]:
        """An observation's text for each call, in order; a failed call gives a ToolDown in its place instead of raising
        it."""
        return await asyncio.gather(*(self._answer(call) for call in calls))

    async def mcp(self) -> dict[str, McpBinding]:
        """Bindings of the tools of MCP servers, by tool name."""
        return {name: await tool.binding() for name, tool in self._tools.items() if isinstance(tool, McpTool)}

    def stats(self) -> dict[str, ToolStats]:
        return {name: self._stats(name) for name in self._tools}

    def disk_failures(self) -> int:
        """Number of failed reads and writes of the disk cache; the calls themselves continued."""
        return 0 if self._disk is None else self._disk.failures

    async def close(self) -> None:
        for tool in self._tools.values():
            if isinstance(tool, Closable):
                await tool.close()
        if self._disk is not None:
            await self._disk.close()

    def _stats(self, name: str) -> ToolStats:
        counts, tool = self._counts[name], self._tools[name]
        own = dict(tool.counts()) if isinstance(tool, Counting) else {}
        return ToolStats(
            **{kind: counts[kind] for kind in COUNTED},
            hits=counts[Found.KEPT.value],
            joined=counts[Found.JOINED.value],
            seconds=self._seconds[name],
            histogram=dict(self._histograms[name]),
            retries=own.get("retries", 0),
            own=own,
        )

    async def _answer(self, call: ToolCall) -> str | ToolDown:
        if self._mistake:
            return ToolDown(self._mistake)
        # The policy can only call tools of its profile, so an unknown tool is an error in this run's setup.
        if call.tool not in self._tools:
            return ToolDown(f"there is no tool {call.tool}")
        counts = self._counts[call.tool]
        counts["calls"] += 1
        try:
            key = self._tools[call.tool].key(call)
            if key is None:
                return await self._run(call)
            known = (call.tool, call.layout, key)
            counts[self._memo.find(known).value] += 1
            return await self._memo.get(known, partial(self._look_up_or_run, call, key))
        except InfrastructureError as error:
            counts["failures"] += 1
            return error if isinstance(error, ToolDown) else ToolDown(f"{call.tool}: {type(error).__name__}: {error}")
        except Exception as defect:
            counts["failures"] += 1
            counts["defects"] += 1
            logger.exception("a defect in the tool %s, called with %.200r", call.tool, call.argument)
            return ToolDown(f"{call.tool} raised {type(defect).__name__}: {defect}")

    async def _look_up_or_run(self, call: ToolCall, key: str) -> str:
        tool = self._tools[call.tool]
        if self._disk is None or not isinstance(tool, Fingerprinted):
            return await self._run(call)
        mark = json.dumps([call.tool, tool.fingerprint, call.layout, key])
        kept = await self._disk.get(mark)
        if kept is not None:
            self._counts[call.tool]["disk_hits"] += 1
            return kept
        text = await self._run(call)
        if not isinstance(text, Fleeting):
            await self._disk.put(mark, text)
        return text

    async def _run(self, call: ToolCall) -> str:
        counts = self._counts[call.tool]
        with _counting(counts, "waiting"):
            await self._places[call.tool].acquire()
        limit_s = self._config.limit_s(call.tool)
        started = time.perf_counter()
        try:
            with _counting(counts, "running"):
                async with asyncio.timeout(limit_s):
                    return _clean(await self._tools[call.tool](call))
        except TimeoutError as error:
            counts["timeouts"] += 1
            raise ToolDown(f"{call.tool}: nothing within {limit_s:g} s") from error
        except asyncio.CancelledError as error:
            if (mine := asyncio.current_task()) is not None and mine.cancelling():
                raise
            raise RuntimeError("cancelled, though nobody cancelled the call") from error
        finally:
            seconds = time.perf_counter() - started
            self._seconds[call.tool] += seconds
            self._histograms[call.tool][bucket_of(seconds)] += 1
            self._places[call.tool].release()


def _clean(text: str) -> str:
    """A well-formed text: tools may return arbitrary text of web pages and policies."""
    clean = whole(text)
    return text if clean == text else Fleeting(clean) if isinstance(text, Fleeting) else clean


@contextmanager
def _counting(counts: Counter[str], state: str) -> Iterator[None]:
    counts[state] += 1
    try:
        yield
    finally:
        counts[state] -= 1
