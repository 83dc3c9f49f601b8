"""The dispatcher of tool calls, in virtual time, on executors that die, stand still, and come and go."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from actors.tools.dispatcher import ToolDispatcher
from actors.tools.executor import ExecutorConfig, ToolExecutor
from actors.tools.stats import ToolStats
from actors.tools.workers import LOOK_EVERY_S, SILENT_S
from coa.errors import CallLost, ExecutorLost, ToolDown
from coa.tools.base import ToolCall
from coa.tools.client import Replies, ToolCaller
from coa.tools.mcp.binding import McpBinding
from coa.tools.scaling import ToolScaling
from tests.support.virtual_time import in_virtual_time, stand_still


class Machine:
    """Where executors run. A call takes `seconds`; "kills" ends the process, and "hangs" blocks it for ever."""

    def __init__(self, seconds: float = 1.0, poisonous: int = 1_000_000) -> None:
        """poisonous: number of calls that "kills" and "hangs" harm."""
        self.seconds, self.poisonous = seconds, poisonous
        self.made: Counter[str] = Counter()
        """Executions, by argument."""
        self.workers: list[FakeWorker] = []
        self.start_s, self.stats_s = 0.0, 0.0

    def launch(self) -> "FakeWorker":
        self.workers.append(FakeWorker(self))
        return self.workers[-1]

    @property
    def alive(self) -> "list[FakeWorker]":
        return [worker for worker in self.workers if not worker.dead.is_set()]


class FakeWorker:
    """The process of a tool executor."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._executor = ToolExecutor(lambda: {"t": self}, ExecutorConfig(call_s=1e6, concurrency=1000))
        self.dead, self.blocked = asyncio.Event(), asyncio.Event()
        self.running = 0

    def key(self, call: ToolCall) -> str | None:
        return None

    async def __call__(self, call: ToolCall) -> str:
        self._machine.made[call.argument] += 1
        if call.argument in ("kills", "hangs") and self._machine.poisonous:
            self._machine.poisonous -= 1
            (self.dead if call.argument == "kills" else self.blocked).set()
        self.running += 1
        try:
            await asyncio.sleep(self._machine.seconds)
        finally:
            self.running -= 1
        return f"{call.argument}!"

    async def _answer(self, answer: Awaitable[Any]) -> Any:
        """The answer as it comes through Ray: never of a process that is blocked, and an error of one that died."""
        asked, died = asyncio.ensure_future(answer), asyncio.ensure_future(self.dead.wait())
        try:
            await asyncio.wait({asked, died}, return_when=asyncio.FIRST_COMPLETED)
            if self.blocked.is_set():
                await died
            if self.dead.is_set():
                raise ExecutorLost("its process is gone")
            return asked.result()
        finally:
            asked.cancel()
            died.cancel()

    async def mistake(self) -> str:
        await asyncio.sleep(self._machine.start_s)
        return await self._answer(self._executor.mistake())

    async def stats(self) -> dict[str, ToolStats]:
        async def stats() -> dict[str, ToolStats]:
            await asyncio.sleep(self._machine.stats_s)
            return self._executor.stats()

        return await self._answer(stats())

    async def mcp(self) -> dict[str, McpBinding]:
        return {}

    async def start(
        self,
        caller: str,
        calls: Sequence[tuple[Hashable, ToolCall]],
        acknowledged: Sequence[Hashable],
        incarnation: str,
    ) -> str:
        return await self._answer(self._executor.start(caller, calls, acknowledged, incarnation))

    async def replies(self, caller: str, incarnation: str, after: int) -> Replies:
        return await self._answer(self._executor.replies(caller, incarnation, after))

    async def cancel(self, caller: str, ids: Sequence[Hashable]) -> None:
        await self._answer(self._executor.cancel(caller, ids))

    def kill(self) -> None:
        self.dead.set()


def dispatcher_on(
    machine: Machine, executors: int = 1, bounds: tuple[int, int] | None = None, **settings: Any
) -> ToolDispatcher:
    return ToolDispatcher(machine.launch, ExecutorConfig(**settings), executors, bounds or (executors, executors))


def taking_calls(dispatcher: ToolDispatcher) -> int:
    """Number of executors that are up and do not drain."""
    return sum(slot.up and not slot.draining for slot in dispatcher._workers.slots)


def in_time(go: Callable[[], Awaitable[None]]) -> None:
    async def whole() -> None:
        await go()

    in_virtual_time(whole())


def now() -> float:
    return asyncio.get_running_loop().time()


def calls_of(dispatcher: ToolDispatcher, name: str, *arguments: str) -> list[asyncio.Task[str]]:
    """Calls of an engine, each with its argument as its id."""
    caller = ToolCaller(dispatcher, name, None)
    return [asyncio.ensure_future(caller.call(argument, ToolCall("t", argument))) for argument in arguments]


@pytest.mark.parametrize("ends", ["kills", "hangs"])
def test_the_calls_of_an_executor_that_dies_or_is_blocked_are_made_once_more_by_another_one(ends: str) -> None:
    async def go() -> None:
        machine = Machine(poisonous=1)
        dispatcher = dispatcher_on(machine)
        assert await asyncio.gather(*calls_of(dispatcher, "engine", "a", ends, "b")) == ["a!", f"{ends}!", "b!"]
        assert machine.made == {"a": 2, ends: 2, "b": 2}
        assert now() <= LOOK_EVERY_S + SILENT_S + 5
        assert len(machine.workers) == 2
        assert machine.alive == machine.workers[1:]
        stats = (await dispatcher.stats())["t"]
        assert (stats.repeated, stats.lost) == (3, 0)

    in_time(go)


def test_a_blocked_executor_is_replaced_though_it_has_no_call_of_ours() -> None:
    async def go() -> None:
        machine = Machine()
        dispatcher = dispatcher_on(machine)
        await dispatcher.mistake()
        machine.workers[0].blocked.set()
        await asyncio.sleep(LOOK_EVERY_S + SILENT_S + 5)
        assert machine.alive == machine.workers[1:]
        assert taking_calls(dispatcher) == 1

    in_time(go)


@pytest.mark.parametrize("ends", ["kills", "hangs"])
def test_a_call_that_ends_two_executors_is_never_made_again_by_any_engine(ends: str) -> None:
    async def go() -> None:
        machine = Machine()
        dispatcher = dispatcher_on(machine)
        for engine in ("first", "second"):
            [call] = calls_of(dispatcher, engine, ends)
            with pytest.raises(CallLost):
                await call
        assert machine.made == {ends: 2}
        assert await asyncio.gather(*calls_of(dispatcher, "first", "a")) == ["a!"]
        stats = (await dispatcher.stats())["t"]
        assert (stats.repeated, stats.lost) == (1, 1)

    in_time(go)


def test_an_engine_that_takes_over_joins_the_repeated_call() -> None:
    async def go() -> None:
        machine = Machine(seconds=20.0)
        dispatcher = dispatcher_on(machine)
        [first] = calls_of(dispatcher, "first", "a")
        await asyncio.sleep(3)
        machine.workers[0].dead.set()
        await asyncio.sleep(3)
        await dispatcher.refuse(["first"])
        [second] = calls_of(dispatcher, "second", "a")
        assert await second == "a!"
        assert machine.made == {"a": 2}
        with pytest.raises(ToolDown, match="refused"):
            await first

    in_time(go)


def test_time_in_which_this_process_stood_still_loses_no_executor() -> None:
    async def go() -> None:
        machine = Machine(seconds=300.0)
        dispatcher = dispatcher_on(machine, 3)
        calls = calls_of(dispatcher, "engine", *"abc")
        machine.stats_s = 1.0
        await asyncio.sleep(LOOK_EVERY_S + 0.5)
        stand_still(1000.0)  # while all of them are asked
        assert await asyncio.gather(*calls) == ["a!", "b!", "c!"]
        assert len(machine.workers) == 3

    in_time(go)


def test_a_call_goes_to_the_executor_that_has_fewest_and_waits_where_none_has_room() -> None:
    async def go() -> None:
        machine = Machine(seconds=10.0)
        dispatcher = dispatcher_on(machine, 2, concurrency=3)
        calls = calls_of(dispatcher, "engine", *"abcdefgh")
        await asyncio.sleep(5)
        assert [worker.running for worker in machine.workers] == [3, 3]
        assert (await dispatcher.stats())["t"].waiting == 2
        assert await asyncio.gather(*calls) == [f"{name}!" for name in "abcdefgh"]
        assert now() == pytest.approx(20, abs=1)

    in_time(go)


def test_calls_that_are_cancelled_end_wherever_they_are() -> None:
    async def go() -> None:
        machine = Machine(seconds=10.0)
        dispatcher = dispatcher_on(machine, 1, concurrency=1)
        running, waiting, last = calls_of(dispatcher, "engine", *"abc")
        await asyncio.sleep(1)
        for call in (running, waiting):
            call.cancel()
        await asyncio.wait([running, waiting])
        assert await last == "c!"
        assert machine.made == {"a": 1, "c": 1}
        assert now() == pytest.approx(11, abs=1)

    in_time(go)


def test_counts_of_executors_that_are_gone_stay() -> None:
    async def go() -> None:
        machine = Machine()
        dispatcher = dispatcher_on(machine)
        await asyncio.gather(*calls_of(dispatcher, "engine", *"abc"))
        await asyncio.sleep(LOOK_EVERY_S + 1)
        machine.workers[0].dead.set()
        await asyncio.sleep(LOOK_EVERY_S + 1)
        await asyncio.gather(*calls_of(dispatcher, "engine", "d"))
        assert (await dispatcher.stats())["t"].calls == 4

    in_time(go)


def test_an_executor_that_does_not_start_is_an_error_at_first_and_tried_again_later() -> None:
    async def go() -> None:
        machine = Machine()
        dispatcher = dispatcher_on(machine)
        machine.start_s = 1.0
        starting = asyncio.ensure_future(dispatcher.mistake())
        await asyncio.sleep(0.5)
        machine.workers[0].dead.set()
        with pytest.raises(ExecutorLost):
            await starting
        assert await asyncio.gather(*calls_of(dispatcher, "engine", "a")) == ["a!"]
        assert machine.made == {"a": 1}

    in_time(go)


def test_a_dispatcher_without_executors_says_so_until_one_is_up() -> None:
    async def go() -> None:
        machine = Machine()
        dispatcher = dispatcher_on(machine)
        machine.start_s = 5.0
        for _ in range(2):
            with pytest.raises(ToolDown, match="no tool executor is up"):
                await dispatcher.check()
            await asyncio.sleep(1.0)
        assert len(machine.workers) == 1, "asking starts it, once"
        await asyncio.sleep(5.0)
        await dispatcher.check()
        machine.start_s = 1000.0
        machine.workers[0].dead.set()
        await asyncio.sleep(LOOK_EVERY_S + 1)
        with pytest.raises(ToolDown, match="no tool executor is up"):
            await dispatcher.check()

    in_time(go)


def test_executors_come_with_a_queue_and_leave_without_losing_a_call() -> None:
    async def go() -> None:
        machine = Machine(seconds=4.0)
        machine.start_s = 3.0
        scaling = ToolScaling(look_back_s=10.0, cooldown_s=60.0)
        dispatcher = dispatcher_on(machine, 1, (1, 3), concurrency=2, scaling=scaling)
        arguments = [str(number) for number in range(120)]
        seen: list[int] = []

        async def count() -> None:
            while True:
                seen.append(taking_calls(dispatcher))
                await asyncio.sleep(1)

        counting = asyncio.ensure_future(count())
        assert await asyncio.gather(*calls_of(dispatcher, "engine", *arguments)) == [f"{one}!" for one in arguments]
        assert taking_calls(dispatcher) == 3
        assert now() < 120 * 4 / 2 / 2, "more than twice as fast as one executor"
        calls = calls_of(dispatcher, "engine", "last")
        await asyncio.sleep(300)
        counting.cancel()
        assert await asyncio.gather(*calls) == ["last!"]
        assert len(machine.alive) == taking_calls(dispatcher) == 1
        assert max(machine.made.values()) == 1
        turns = [after - before for before, after in pairwise(seen) if after != before]
        assert turns == sorted(turns, reverse=True), "up, then down"
        assert (await dispatcher.stats())["t"].calls == 121

    in_time(go)


def test_an_executor_that_drains_has_the_time_that_its_calls_take() -> None:
    async def go() -> None:
        machine = Machine(seconds=500.0)
        dispatcher = dispatcher_on(machine, 2, concurrency=2)
        await dispatcher.mistake()
        calls = calls_of(dispatcher, "engine", "a", "b")
        await asyncio.sleep(1)
        dispatcher._workers.resize(1)
        await asyncio.sleep(100)
        assert (len(machine.alive), taking_calls(dispatcher)) == (2, 1)
        assert await asyncio.gather(*calls) == ["a!", "b!"]
        assert len(machine.alive) == 1
        assert machine.made == {"a": 1, "b": 1}

    in_time(go)
