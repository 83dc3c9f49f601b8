"""Calls that are made in the same moment travel together."""

import asyncio
from collections.abc import Sequence

import pytest

from coa.errors import InfrastructureError, ToolDown
from coa.llm.batching import CallBatcher
from coa.tools.base import ToolCall


class Executor:
    """Answers `argument!`; "down" is a tool that is down."""

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.batches: list[list[str]] = []

    async def __call__(self, calls: Sequence[ToolCall]) -> list[str | InfrastructureError]:
        self.batches.append([call.argument for call in calls])
        await asyncio.sleep(self.seconds)
        return [ToolDown("gone") if call.argument == "down" else f"{call.argument}!" for call in calls]


def call(argument: str) -> ToolCall:
    return ToolCall("code", argument)


def test_calls_of_the_same_moment_travel_together_and_answers_find_their_callers() -> None:
    async def go() -> None:
        executor = Executor()
        client = CallBatcher(executor)
        assert await asyncio.gather(*(client(call(a)) for a in "abc")) == ["a!", "b!", "c!"]
        assert await client(call("d")) == "d!"
        assert executor.batches == [["a", "b", "c"], ["d"]]

    asyncio.run(go())


def test_calls_that_follow_within_the_same_turn_of_the_loop_join() -> None:
    async def go() -> None:
        executor = Executor()
        client = CallBatcher(executor)

        async def next_turn(argument: str) -> str:
            await asyncio.sleep(0)
            return await client(call(argument))

        assert await asyncio.gather(client(call("a")), next_turn("b")) == ["a!", "b!"]
        assert executor.batches == [["a", "b"]]

    asyncio.run(go())


def test_a_call_that_comes_while_others_are_under_way_does_not_wait_for_them() -> None:
    async def go() -> None:
        executor = Executor(seconds=0.01)
        client = CallBatcher(executor)
        first = asyncio.ensure_future(client(call("a")))
        await asyncio.sleep(0.005)
        second = asyncio.ensure_future(client(call("b")))
        assert await asyncio.gather(first, second) == ["a!", "b!"]
        assert executor.batches == [["a"], ["b"]]

    asyncio.run(go())


def test_a_failing_call_raises_for_its_caller_alone() -> None:
    async def go() -> None:
        client = CallBatcher(Executor())
        one, down, two = await asyncio.gather(
            client(call("a")), client(call("down")), client(call("b")), return_exceptions=True
        )
        assert (one, two) == ("a!", "b!")
        assert isinstance(down, ToolDown)
        assert str(down) == "gone"

    asyncio.run(go())


@pytest.mark.parametrize("moment", [0.0, 0.005], ids=["before the calls leave", "on their way"])
def test_a_caller_that_is_cancelled_does_not_take_the_others_with_it(moment: float) -> None:
    async def go() -> None:
        client = CallBatcher(Executor(seconds=0.02))
        callers = [asyncio.ensure_future(client(call(a))) for a in "abc"]
        await asyncio.sleep(moment)
        callers[0].cancel()
        assert await asyncio.gather(*callers[1:]) == ["b!", "c!"]
        assert callers[0].cancelled()

    asyncio.run(go())


def test_an_executor_that_dies_fails_all_who_called_it_and_not_the_next() -> None:
    async def go() -> None:
        broken = [True]

        async def call_many(calls: Sequence[ToolCall]) -> list[str]:
            if broken.pop() if broken else False:
                raise ToolDown("executor died")
            return ["x"] * len(calls)

        client = CallBatcher(call_many)
        failed = await asyncio.gather(client(call("a")), client(call("b")), return_exceptions=True)
        assert [str(one) for one in failed] == ["executor died"] * 2
        assert await client(call("c")) == "x"

    asyncio.run(go())
