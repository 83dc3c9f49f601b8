"""Tool executors for tests that play episodes."""

from collections.abc import Awaitable, Callable, Hashable, Sequence

from actors.tools.calls import KnownCalls
from coa.errors import ToolDown
from coa.tools.base import ToolCall
from coa.tools.client import Replies


class Answering:
    """An executor all of whose tools are one function."""

    def __init__(self, answer: Callable[[ToolCall], Awaitable[str | ToolDown]]) -> None:
        self.calls = KnownCalls(answer, 1000)

    async def start(
        self,
        caller: str,
        calls: Sequence[tuple[Hashable, ToolCall]],
        acknowledged: Sequence[Hashable],
        incarnation: str,
    ) -> str:
        return self.calls.start(caller, calls, acknowledged, incarnation)

    async def replies(self, caller: str, incarnation: str, after: int) -> Replies:
        return await self.calls.replies(caller, incarnation, after)

    async def cancel(self, caller: str, ids: Sequence[Hashable]) -> None:
        await self.calls.cancel(caller, ids)
