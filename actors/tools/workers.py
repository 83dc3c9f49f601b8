"""Keeps the processes of tool executors: starts them, replaces those that are lost, adds and removes them by the load.

An executor that has ended, or that gives no answer for SILENT_S, is lost: it is stopped, or a tool blocks it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from actors.tools.executor import ExecutorConfig
from actors.tools.stats import ToolStats
from coa.concurrency import Work
from coa.errors import ToolDown
from coa.tools.client import Executor, ToolCaller
from coa.tools.mcp.binding import McpBinding
from coa.tools.scaling import ExecutorController

logger = logging.getLogger(__name__)
LOOK_EVERY_S = 5.0
"""Seconds between two requests for an executor's stats, which also show that it is alive."""
SILENT_S = 30.0
"""Seconds that an executor may take to answer such a request."""
LOOKS = 3
"""Waits that make up SILENT_S. If this process itself stood still, only one of them ends before answers are read."""
LONGEST_PAUSE_S = 60.0
"""Maximum pause after a start that failed."""
SCALE_EVERY_S = 1.0


class Worker(Executor, Protocol):
    """The process of a tool executor; its methods raise ExecutorLost if it has ended."""

    async def mistake(self) -> str: ...
    async def stats(self) -> Mapping[str, ToolStats]: ...
    async def mcp(self) -> dict[str, McpBinding]: ...

    def kill(self) -> None:
        """Ends the process, whatever it is doing."""
        ...


@dataclass(eq=False)
class ExecutorSlot:
    """An executor and what it has."""

    worker: Worker
    caller: ToolCaller
    gone: asyncio.Future[None]
    """Done once the executor is lost or retired."""
    up: bool = False
    draining: bool = False
    """Whether it gets no further calls, and is retired after its last one."""
    running: Counter[str] = field(default_factory=Counter)
    """Number of calls that it has, by tool."""
    stats: Mapping[str, ToolStats] = field(default_factory=dict)
    """Its last answer."""


class Workers:
    """The executors that there are. The first call of `begin` starts them."""

    def __init__(
        self,
        launch: Callable[[], Worker],
        config: ExecutorConfig,
        controller: ExecutorController | None,
        *,
        executors: int,
        waiting: Callable[[], Mapping[str, int]],
        changed: Callable[[], None],
    ) -> None:
        """launch: starts a process. controller: None for a fixed number. waiting: gives the number of waiting calls of
        each tool. changed: called when an executor has come up or may be retired."""
        self._launch, self._config, self._controller = launch, config, controller
        self._executors, self._waiting, self._changed = executors, waiting, changed
        self.slots: list[ExecutorSlot] = []
        self._past: dict[str, ToolStats] = {}
        """Sum of the last stats of executors that are gone."""
        self._failed_starts = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._first: list[asyncio.Future[str]] = []
        """For each executor of the beginning, the mistake because of which it has no tools."""

    def begin(self) -> None:
        if self._first:
            return
        for _ in range(self._executors):
            self._first.append(asyncio.get_running_loop().create_future())
            self._spawn(self._run(self._add(), self._first[-1]))
        if self._controller is not None:
            self._spawn(self._scale(self._controller))

    async def mistake(self) -> str:
        """The mistake because of which the executors have no tools, or ""; raises ToolDown if one did not start."""
        self.begin()
        return next(filter(None, await asyncio.gather(*self._first)), "")

    async def stats(self) -> dict[str, ToolStats]:
        """Stats of all executors so far; of those that are gone, the last that were known."""
        await asyncio.gather(*(self._ask(slot) for slot in self.slots if slot.up))
        found: dict[str, ToolStats] = {}
        for stats in (self._past, *(slot.stats for slot in self.slots)):
            for tool, one in stats.items():
                found[tool] = found.get(tool, ToolStats()) + one
        return found

    def replace(self, slot: ExecutorSlot, why: str) -> None:
        """Ends an executor that is lost, and starts another one unless it was draining."""
        if slot.gone.done():
            return
        logger.warning("a tool executor is lost: %s", why)
        self._let_go(slot)
        if not slot.draining:
            self._spawn(self._run(self._add()))

    def retire_drained(self) -> None:
        for slot in [slot for slot in self.slots if slot.draining and not slot.running.total()]:
            self._let_go(slot)

    def resize(self, wanted: int) -> None:
        """Adds executors, or lets some drain: those that are not up yet, then those with the fewest calls."""
        active = [slot for slot in self.slots if not slot.draining]
        for slot in sorted(active, key=lambda slot: (slot.up, slot.running.total()))[: max(0, len(active) - wanted)]:
            slot.draining = True
        for slot in [slot for slot in self.slots if slot.draining][: max(0, wanted - len(active))]:
            slot.draining = False
            active.append(slot)
        for _ in range(wanted - len(active)):
            self._spawn(self._run(self._add()))
        self._changed()

    def _spawn(self, work: Work[None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _add(self) -> ExecutorSlot:
        worker = self._launch()
        slot = ExecutorSlot(worker, ToolCaller(worker, "dispatcher", None), asyncio.get_running_loop().create_future())
        self.slots.append(slot)
        return slot

    async def _run(self, slot: ExecutorSlot, first: asyncio.Future[str] | None = None) -> None:
        """Brings an executor up, and looks after it until it is gone."""
        try:
            mistake = await slot.worker.mistake()
        except ToolDown as error:
            if first is not None:
                first.set_exception(error)
            self._failed_starts += 1
            await asyncio.sleep(min(LONGEST_PAUSE_S, 2.0**self._failed_starts))
            self.replace(slot, f"it did not start: {error}")
            return
        if first is not None:
            first.set_result(mistake)
        if slot.gone.done():
            return
        slot.up, self._failed_starts = True, 0
        self._changed()
        while not slot.gone.done():
            await asyncio.wait({slot.gone}, timeout=LOOK_EVERY_S)
            if not slot.gone.done() and (why := await self._ask(slot)):
                self.replace(slot, why)

    async def _ask(self, slot: ExecutorSlot) -> str:
        """Asks an executor for its stats; returns why it counts as lost, or ""."""
        asking = asyncio.ensure_future(slot.worker.stats())
        for _ in range(LOOKS):
            await asyncio.wait({asking, slot.gone}, timeout=SILENT_S / LOOKS, return_when=asyncio.FIRST_COMPLETED)
            if asking.done():
                try:
                    slot.stats = asking.result()
                except ToolDown as error:
                    return str(error)
                return ""
            if slot.gone.done():
                break
        asking.cancel()
        return "" if slot.gone.done() else f"no answer for {SILENT_S:g} s: stopped, or blocked by a tool"

    def _let_go(self, slot: ExecutorSlot) -> None:
        slot.gone.set_result(None)
        self.slots.remove(slot)
        for tool, stats in slot.stats.items():
            self._past[tool] = self._past.get(tool, ToolStats()) + replace(stats, running=0, waiting=0)
        slot.worker.kill()

    async def _scale(self, controller: ExecutorController) -> None:
        while True:
            await asyncio.sleep(SCALE_EVERY_S)
            running = sum((slot.running for slot in self.slots), Counter[str]())
            decision = controller.look(asyncio.get_running_loop().time(), running, self._waiting())
            if decision.why:
                logger.info("%s: %d wanted", decision.why, decision.executors)
                self.resize(decision.executors)
