import asyncio
from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from itertools import islice

import pytest

from coa.concurrency import doubling, together, within
from coa.llm.batching import CallBatcher
from coa.tools.base import ToolCall
from coa.tools.cache import Memo
from coa.tools.client import Replies, ToolCaller
from tests.support.executors import Answering

CALL: ContextVar[str] = ContextVar("CALL", default="none")
"""As Ray has one, by which it knows what a call has begun."""


class Noting(Answering):
    """An executor that notes in which context it is asked."""

    def __init__(self) -> None:
        super().__init__(self._answer)
        self.seen: list[str] = []

    async def _answer(self, call: ToolCall) -> str:
        self.seen.append(f"run in {CALL.get()}")
        return call.argument

    async def start(
        self,
        caller: str,
        calls: Sequence[tuple[Hashable, ToolCall]],
        acknowledged: Sequence[Hashable],
        incarnation: str,
    ) -> str:
        self.seen.append(f"start in {CALL.get()}")
        return await super().start(caller, calls, acknowledged, incarnation)

    async def replies(self, caller: str, incarnation: str, after: int) -> Replies:
        self.seen.append(f"replies in {CALL.get()}")
        return await super().replies(caller, incarnation, after)


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(doubling(0.5), 4)) == [0.5, 1, 2, 4]
    assert list(islice(doubling(20.0, 60.0), 4)) == [20, 40, 60, 60]
    assert list(islice(doubling(0.0), 2)) == [0, 0]


def test_pauses_come_to_the_patience_that_there_is() -> None:
    assert list(within(300.0, doubling(0.5, 60.0))) == [0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 56.5]
    assert list(within(3.75, doubling(0.5))) == [0.5, 1, 2, 0.25]
    assert list(within(0.0, doubling(0.5))) == []


def test_the_first_failure_ends_the_others_before_it_is_raised() -> None:
    ended: list[str] = []

    async def fail() -> None:
        await asyncio.sleep(0)
        raise ValueError("first")

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("last")

    with pytest.raises(ValueError, match="first"):
        asyncio.run(together([fail(), last()]))
    assert ended == ["last"]


def test_what_is_done_for_several_callers_belongs_to_none_of_them() -> None:
    async def go() -> None:
        CALL.set("first")
        executor = Noting()
        assert await ToolCaller(executor, "server").call(1, ToolCall("t", "x")) == "x"
        assert executor.seen == ["start in none", "run in none", "replies in none"]

        async def context() -> str:
            return CALL.get()

        async def contexts(items: Sequence[int]) -> list[str]:
            return [await context() for _ in items]

        assert await Memo[str](9).get("key", context) == "none"
        assert await CallBatcher[int, str](contexts)(1) == "none"

    asyncio.run(go())
