"""Tool executors for tests that play episodes."""

from collections.abc import Awaitable, Callable

from actors.tools.calls import KnownCalls
from coa.errors import ToolDown
from coa.tools.base import ToolCall


class Answering(KnownCalls):
    """An executor all of whose tools are one function."""

    def __init__(self, answer: Callable[[ToolCall], Awaitable[str | ToolDown]], keep: int = 1000) -> None:
        super().__init__(keep)
        self._function = answer

    async def _answer(self, call: ToolCall) -> str | ToolDown:
        return await self._function(call)
