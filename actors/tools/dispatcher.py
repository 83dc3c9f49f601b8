"""Gives tool calls to executors.

    engines, teams -- start, replies --> ToolDispatcher: calls by id, a queue --> ToolExecutor, a process each

Tools run in executors only, so no tool can end or block the dispatcher. The calls of an executor that is lost are made
again by another one, once at most: a call whose second executor is lost too may be what ends them, and fails as
CallLost. An executor answers by id, as the dispatcher does, so that calls travel in batches: with a call of Ray for
each, both processes would compute several times as long.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import count

from actors.tools.calls import KnownCalls
from actors.tools.executor import ExecutorConfig
from actors.tools.stats import ToolStats
from actors.tools.workers import ExecutorSlot, Worker, Workers
from coa.errors import CallLost, ExecutorLost, ToolDown
from coa.tools.base import ToolCall
from coa.tools.mcp.binding import McpBinding
from coa.tools.scaling import ExecutorController


class ToolDispatcher(KnownCalls):
    """A plain class that is called like a `ToolExecutor`; it starts executors when it is first called."""

    def __init__(
        self, launch: Callable[[], Worker], config: ExecutorConfig, executors: int, bounds: tuple[int, int]
    ) -> None:
        """launch: starts the process of an executor. executors: number at the beginning. bounds: minimum and maximum
        number."""
        super().__init__(config.kept_results)
        least, most = bounds
        executors = min(max(executors, least), most)
        controller = ExecutorController(config.scaling, config.places, least=least, most=most, executors=executors)
        self._config = config
        self._workers = Workers(
            launch,
            config,
            controller if least < most else None,
            executors=executors,
            waiting=self._waiting,
            changed=self._fill,
        )
        self._ids = count()
        self._queues: dict[str, deque[asyncio.Future[ExecutorSlot]]] = {}
        """Calls that wait for an executor, by tool."""
        self._counts: dict[str, Counter[str]] = {}

    async def mistake(self) -> str:
        """Starts the executors. Returns the mistake in the configuration because of which there are no tools, or "";
        raises ToolDown if an executor could not be started."""
        return await self._workers.mistake()

    async def check(self) -> None:
        """Raises ToolDown if no executor is up, as where there is no room for one: calls wait until then."""
        self._workers.begin()
        if not any(slot.up for slot in self._workers.slots):
            raise ToolDown("no tool executor is up; each needs placement.tool_cpus of a node")

    async def start(
        self,
        caller: str,
        calls: Sequence[tuple[Hashable, ToolCall]],
        acknowledged: Sequence[Hashable] = (),
        incarnation: str = "",
    ) -> str:
        self._workers.begin()
        return await super().start(caller, calls, acknowledged, incarnation)

    async def mcp(self) -> dict[str, McpBinding]:
        """Returns the MCP tool behind each tag that one answers; raises ToolDown."""
        await self.mistake()
        if not (up := [slot for slot in self._workers.slots if slot.up]):
            raise ToolDown("no tool executor is up")
        return await up[0].worker.mcp()

    async def stats(self) -> dict[str, ToolStats]:
        """Stats of the executors, those that are gone included, and of the calls that wait here."""
        found, none = await self._workers.stats(), Counter[str]()
        for tool in self._counts.keys() | found.keys():
            counts, stats = self._counts.get(tool, none), found.get(tool, ToolStats())
            waiting = stats.waiting + len(self._queues.get(tool, ()))
            found[tool] = replace(stats, waiting=waiting, repeated=counts["repeated"], lost=counts["lost"])
        return found

    def _waiting(self) -> Mapping[str, int]:
        return {tool: len(queue) for tool, queue in self._queues.items()}

    async def _answer(self, call: ToolCall) -> str | ToolDown:
        """Makes a call, and once more if its executor is lost."""
        counts, id = self._counts.setdefault(call.tool, Counter()), next(self._ids)
        lost = 0
        while True:
            slot = await self._place_for(call.tool, ahead=lost > 0)
            try:
                if not slot.gone.done():  # otherwise it was lost before it had the call
                    return await self._made_by(slot, id, call)
            except ExecutorLost as error:
                self._workers.replace(slot, str(error))
                lost += 1
                if lost > 1:
                    counts["lost"] += 1
                    return CallLost(f"{call.tool}: the executors of this call were lost twice: {error}")
                counts["repeated"] += 1
            except ToolDown as down:
                return down
            finally:
                slot.running[call.tool] -= 1
                self._fill()

    @staticmethod
    async def _made_by(slot: ExecutorSlot, id: int, call: ToolCall) -> str:
        making = asyncio.ensure_future(slot.caller.call(id, call))
        try:
            await asyncio.wait({making, slot.gone}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            making.cancel()
            await asyncio.wait({making, slot.gone}, return_when=asyncio.FIRST_COMPLETED)
            raise
        if making.done():
            slot.caller.acknowledge([id])
            return making.result()
        making.cancel()
        raise ExecutorLost("the tool executor was replaced")

    async def _place_for(self, tool: str, *, ahead: bool) -> ExecutorSlot:
        """An executor with a free place for a call of the tool. ahead: whether it is given one before the calls that
        wait already."""
        queue = self._queues.setdefault(tool, deque())
        mine: asyncio.Future[ExecutorSlot] = asyncio.get_running_loop().create_future()
        if ahead:
            queue.appendleft(mine)
        else:
            queue.append(mine)
        self._fill()
        try:
            return await mine
        except asyncio.CancelledError:
            if not mine.cancelled():
                mine.result().running[tool] -= 1
                self._fill()
            elif mine in queue:
                queue.remove(mine)
            raise

    def _fill(self) -> None:
        """Gives free places to calls that wait, and retires executors that have drained."""
        for tool, queue in self._queues.items():
            while queue and (slot := self._free(tool)) is not None:
                mine = queue.popleft()
                if not mine.done():
                    slot.running[tool] += 1
                    mine.set_result(slot)
        self._workers.retire_drained()

    def _free(self, tool: str) -> ExecutorSlot | None:
        places = self._config.places(tool)
        free = [one for one in self._workers.slots if one.up and not one.draining and one.running[tool] < places]
        return min(free, key=lambda slot: slot.running.total(), default=None)
