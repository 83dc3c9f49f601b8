"""Calls by id, from both ends: joined, kept, cancelled, refused, answered one by one, over lines that break."""

import asyncio
from collections.abc import Hashable, Sequence
from typing import Any

import pytest

from actors.tools.executor import ExecutorConfig, ToolExecutor
from coa.errors import CallLost, ExecutorLost, ToolDown
from coa.tools.base import ToolCall
from coa.tools.client import Replies, RetryConfig, ToolCaller
from tests.support.executors import Answering
from tests.support.patience import PATIENCE_S
from tests.support.virtual_time import in_virtual_time


class Gated:
    """A tool whose calls end when the test says so; "down" is down."""

    def __init__(self) -> None:
        self.gates: dict[str, asyncio.Event] = {}
        self.made: list[str] = []
        self.running = 0

    def gate(self, argument: str) -> asyncio.Event:
        return self.gates.setdefault(argument, asyncio.Event())

    def open(self, *arguments: str) -> "Gated":
        for argument in arguments:
            self.gate(argument).set()
        return self

    def key(self, call: ToolCall) -> str | None:
        return call.argument

    async def __call__(self, call: ToolCall) -> str:
        self.made.append(call.argument)
        self.running += 1
        try:
            await self.gate(call.argument).wait()
        finally:
            self.running -= 1
        if call.argument == "down":
            raise ToolDown("gone")
        return f"{call.argument}!"


def call(argument: str) -> ToolCall:
    return ToolCall("t", argument)


def executor_of(tool: Gated, **settings: Any) -> ToolExecutor:
    return ToolExecutor(lambda: {"t": tool}, ExecutorConfig(**settings))


async def turns(count: int = 30) -> None:
    """Long enough for all that waits for nothing else."""
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_slow_call_holds_nobody_else_up() -> None:
    async def go() -> None:
        tool = Gated().open("quick", "quicker")
        caller = ToolCaller(executor_of(tool), "engine")
        calls = [
            asyncio.ensure_future(caller.call(n, call(name))) for n, name in enumerate(("slow", "quick", "quicker"))
        ]
        assert await calls[1] == "quick!"
        assert await calls[2] == "quicker!"
        assert not calls[0].done()
        tool.open("slow")
        assert await calls[0] == "slow!"

    asyncio.run(go())


def test_replies_wait_for_one_another_the_longer_the_more_calls_are_under_way() -> None:
    class Pending:
        def key(self, call: ToolCall) -> None:
            return None

        async def __call__(self, call: ToolCall) -> str:
            await asyncio.sleep(float(call.argument))
            return "done"

    async def seconds_of_polls(at_once: int, each_s: float, calls: int) -> list[float]:
        """When replies came, of calls that end one after the other every `each_s` seconds."""
        executor = ToolExecutor(lambda: {"t": Pending()}, ExecutorConfig(concurrency=1000))
        numbered = [(number, call(str(each_s * (number + 1)))) for number in range(calls)]
        numbered += [(calls + number, call("100")) for number in range(at_once - calls)]
        incarnation = await executor.start("engine", numbered)
        loop, came, after = asyncio.get_running_loop(), [], 0
        began = loop.time()
        while after < calls:
            got = await executor.replies("engine", incarnation, after)
            after = got.first + len(got.replies)
            came.append(round(loop.time() - began, 3))
        return came

    assert in_virtual_time(seconds_of_polls(3, 0.01, 3)) == [0.01, 0.02, 0.03], "nobody is kept waiting"
    assert in_virtual_time(seconds_of_polls(500, 0.01, 30)) == [0.01, 0.11, 0.21, 0.31], "tens of them share a message"


def test_calls_of_the_same_moment_travel_together() -> None:
    class Counting(Answering):
        starts: list[int]

        async def start(self, caller: str, calls: Any, acknowledged: Sequence[Hashable], incarnation: str) -> str:
            self.starts = [*getattr(self, "starts", []), len(calls)]
            return await super().start(caller, calls, acknowledged, incarnation)

    async def go() -> None:
        async def answer(one: ToolCall) -> str:
            return "x"

        executor = Counting(answer)
        caller = ToolCaller(executor, "engine")
        await asyncio.gather(*(caller.call(n, call("a")) for n in range(9)))
        assert executor.starts == [9]

    asyncio.run(go())


def test_a_call_that_is_sent_again_joins_or_gets_what_was_kept() -> None:
    async def go() -> None:
        tool = Gated()
        executor = executor_of(tool)
        first, second, third = (ToolCaller(executor, name) for name in ("first", "second", "third"))
        calls = [asyncio.ensure_future(caller.call("id", call("a"))) for caller in (first, second)]
        await turns()
        tool.open("a")
        assert await asyncio.gather(*calls) == ["a!", "a!"]
        assert await third.call("id", call("a")) == "a!"
        assert executor.stats()["t"].calls == 1
        assert tool.made == ["a"]

    asyncio.run(go())


def test_a_result_is_kept_until_it_is_acknowledged() -> None:
    async def go() -> None:
        made: list[str] = []

        async def answer(one: ToolCall) -> str:
            made.append(one.argument)
            return str(len(made))

        caller = ToolCaller(Answering(answer), "engine")
        assert await caller.call("id", call("a")) == "1"
        assert await caller.call("id", call("a")) == "1"
        caller.acknowledge(["id"])
        assert await caller.call("other", call("b")) == "2"
        assert await caller.call("id", call("a")) == "3"

    asyncio.run(go())


def test_a_failure_is_not_kept() -> None:
    async def go() -> None:
        tool = Gated().open("down")
        caller = ToolCaller(executor_of(tool), "engine")
        for _ in range(2):
            with pytest.raises(ToolDown, match="gone"):
                await caller.call("id", call("down"))
        assert tool.made == ["down", "down"]

    asyncio.run(go())


def test_a_call_that_is_cancelled_ends_unless_somebody_else_waits_for_it() -> None:
    async def go() -> None:
        tool = Gated()
        executor = executor_of(tool)
        first, second = (ToolCaller(executor, name) for name in ("first", "second"))
        mine, theirs = (asyncio.ensure_future(caller.call("id", call("a"))) for caller in (first, second))
        equal = asyncio.ensure_future(second.call("another", call("a")))
        await turns()
        assert tool.running == 1
        mine.cancel()
        await asyncio.wait([mine])
        theirs.cancel()
        await asyncio.wait([theirs])
        assert tool.running == 1, "an equal call waits for the same result"
        equal.cancel()
        await asyncio.wait([equal])
        assert tool.running == 0
        assert executor.stats()["t"].running == 0
        tool.open("a")
        assert await first.call("id", call("a")) == "a!"
        assert tool.made == ["a", "a"]

    asyncio.run(go())


def test_a_turn_that_was_sampled_again_makes_its_own_call() -> None:
    async def go() -> None:
        tool = Gated()
        executor = executor_of(tool)
        first, second = (ToolCaller(executor, name) for name in ("first", "second"))
        old = asyncio.ensure_future(first.call("id", call("old")))
        await turns()
        tool.open("new")
        assert await second.call("id", call("new")) == "new!"
        assert (tool.made, tool.running) == (["old", "new"], 0)
        old.cancel()

    asyncio.run(go())


def test_a_caller_that_was_replaced_is_refused_and_its_calls_go_on_for_others() -> None:
    async def go() -> None:
        tool = Gated()
        executor = executor_of(tool)
        old, new = (ToolCaller(executor, name) for name in ("old", "new"))
        hers = asyncio.ensure_future(old.call("id", call("a")))
        await turns()
        await executor.refuse(["old"])
        with pytest.raises(ToolDown, match="refused"):
            await hers
        with pytest.raises(ToolDown, match="calls of old are refused"):
            await old.call("other", call("b"))
        taken_over = asyncio.ensure_future(new.call("id", call("a")))
        await turns()
        tool.open("a")
        assert await taken_over == "a!"
        assert tool.made == ["a"]

    asyncio.run(go())


def test_results_that_nobody_acknowledges_leave_in_the_end() -> None:
    async def go() -> None:
        async def answer(one: ToolCall) -> str:
            return one.argument

        known = Answering(answer, 2)
        await known.start("engine", [(n, call(str(n))) for n in range(5)])
        await turns()
        assert list(known._finished) == [3, 4]
        assert known._known.keys() == known._finished.keys()

    asyncio.run(go())


# --- lines that break -------------------------------------------------------------------------------------------------


class Restarting:
    """An executor that is started anew, without what it knew, when the test says so."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.now = Answering(answer)

    def restart(self) -> None:
        self.now = Answering(self._answer)

    async def start(self, *arguments: Any) -> str:
        return await self.now.start(*arguments)

    async def replies(self, *arguments: Any) -> Replies:
        asked = self.now
        poll = asyncio.ensure_future(asked.replies(*arguments))
        while not poll.done():
            await asyncio.sleep(0)
            if asked is not self.now:
                poll.cancel()
                raise ExecutorLost("it died")
        return await poll

    async def cancel(self, *arguments: Any) -> None:
        await self.now.cancel(*arguments)


def test_calls_of_an_executor_that_dies_fail_and_later_ones_go_to_the_next() -> None:
    async def go() -> None:
        tool = Gated()
        executor: Any = Restarting(tool)
        caller = ToolCaller(executor, "engine")
        lost = [asyncio.ensure_future(caller.call(n, call("a"))) for n in range(3)]
        await turns()
        executor.restart()
        assert [str(one) for one in await asyncio.gather(*lost, return_exceptions=True)] == ["it died"] * 3
        tool.open("a", "b")
        assert await caller.call(0, call("a")) == "a!"
        assert await caller.call(9, call("b")) == "b!"

    asyncio.run(go())


def test_an_executor_that_was_started_again_unseen_starts_nothing_that_its_predecessor_may_have_started() -> None:
    class Silent(Restarting):
        async def replies(self, *arguments: Any) -> Replies:
            return await self.now.replies(*arguments)

    async def go() -> None:
        tool = Gated()
        executor: Any = Silent(tool)
        caller = ToolCaller(executor, "engine")
        tool.open("a")
        assert await caller.call(0, call("a")) == "a!"
        executor.restart()
        with pytest.raises(ExecutorLost, match="started again"):
            await caller.call(1, call("a"))
        assert tool.made == ["a"]
        assert await caller.call(1, call("a")) == "a!"
        assert tool.made == ["a", "a"]

    asyncio.run(go())


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_batches_that_are_on_their_way_when_an_executor_is_started_again_all_fail(order: tuple[int, int]) -> None:
    """The second answer, too, is to a question about the one before."""

    class Slow(Restarting):
        def __init__(self, answer: Any) -> None:
            super().__init__(answer)
            self.gates: list[asyncio.Event] = []

        async def start(self, *arguments: Any) -> str:
            self.gates.append(asyncio.Event())
            await self.gates[-1].wait()
            return await self.now.start(*arguments)

    async def go() -> None:
        tool = Gated().open("a")
        executor: Any = Slow(tool)
        caller = ToolCaller(executor, "engine")

        def sent(id: int) -> "asyncio.Future[str]":
            return asyncio.ensure_future(caller.call(id, call("a")))

        first = sent(0)
        await turns()
        executor.gates[0].set()
        assert await first == "a!"
        lost = [first]
        for id in (1, 2):
            lost.append(sent(id))
            await turns()
        executor.restart()
        for id in order:
            executor.gates[id].set()
            with pytest.raises(ExecutorLost, match="started again"):
                await asyncio.wait_for(lost[id], PATIENCE_S)
        again = sent(1)
        await turns()
        executor.gates[-1].set()
        assert await asyncio.wait_for(again, PATIENCE_S) == "a!"
        assert tool.made == ["a", "a"]

    asyncio.run(go())


def test_a_call_that_must_not_be_made_again_fails_again_until_it_is_acknowledged() -> None:
    async def go() -> None:
        made: list[str] = []

        async def answer(one: ToolCall) -> ToolDown:
            made.append(one.argument)
            return CallLost("twice")

        executor = Answering(answer)
        first, second = (ToolCaller(executor, name) for name in ("first", "second"))
        for caller in (first, second):
            with pytest.raises(CallLost, match="twice"):
                await caller.call("id", call("a"))
        assert made == ["a"]
        first.acknowledge(["id"])
        for id in ("other", "id"):
            with pytest.raises(CallLost, match="twice"):
                await first.call(id, call("a"))
        assert made == ["a", "a", "a"]

    asyncio.run(go())


def test_a_call_whose_executor_is_lost_is_retried_once_and_one_that_fails_as_often_as_is_set() -> None:
    async def go() -> None:
        made: list[ToolDown] = []

        def failing(*errors: ToolDown) -> Any:
            left = list(errors)
            made.clear()

            async def make() -> str:
                if not left:
                    return "text"
                made.append(left.pop(0))
                raise made[-1]

            return make

        retry, counted = RetryConfig(attempts=4, pause_s=0.0), []
        lost, down = ExecutorLost("gone"), ToolDown("down")
        assert await retry.call(failing(down, lost, down), lambda: counted.append(1)) == "text"
        assert len(counted) == 3
        with pytest.raises(CallLost):
            await retry.call(failing(lost, down, lost, down))
        assert made == [lost, down, lost]
        with pytest.raises(CallLost):
            await retry.call(failing(CallLost("twice"), down))
        assert len(made) == 1
        with pytest.raises(ToolDown, match="down"):
            await retry.call(failing(*[down] * 9))
        assert len(made) == 4

    asyncio.run(go())


def test_an_executor_that_can_not_be_reached_is_down() -> None:
    class Gone(Answering):
        async def start(self, *_: Any) -> str:
            raise ToolDown("no way there")

    async def go() -> None:
        executor: Any = Gone(Gated())
        caller = ToolCaller(executor, "engine")
        with pytest.raises(ToolDown, match="no way there"):
            await caller.call(0, call("a"))

    asyncio.run(go())


@pytest.mark.parametrize("stands_still_at", ["start", "replies"])
def test_calls_of_an_executor_that_stands_still_fail_and_are_joined_later(stands_still_at: str) -> None:
    class Stopped(Answering):
        stopped = True

        async def start(self, *arguments: Any) -> str:
            if self.stopped and stands_still_at == "start":
                await asyncio.sleep(1e6)
            return await super().start(*arguments)

        async def replies(self, *arguments: Any) -> Replies:
            if self.stopped:
                await asyncio.sleep(1e6)
            return await super().replies(*arguments)

    async def go() -> None:
        tool = Gated().open("a")
        executor: Any = Stopped(tool)
        caller = ToolCaller(executor, "engine")
        with pytest.raises(ToolDown, match="the tool executor gave no answer for"):
            await caller.call("id", call("a"))
        assert asyncio.get_running_loop().time() <= 60
        executor.stopped = False
        assert await caller.call("id", call("a")) == "a!"
        assert tool.made == ["a"]

    in_virtual_time(go())


def test_a_call_that_takes_long_is_no_executor_that_stands_still() -> None:
    async def go() -> None:
        tool = Gated()
        caller = ToolCaller(Answering(tool), "engine")
        calls = [asyncio.ensure_future(caller.call(n, call("a"))) for n in range(2)]
        await asyncio.sleep(500)
        assert not any(one.done() for one in calls)
        tool.open("a")
        assert await asyncio.gather(*calls) == ["a!", "a!"]

    in_virtual_time(go())
