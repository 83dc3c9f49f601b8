"""Client of a tool executor that is an actor."""

from collections.abc import Awaitable, Hashable, Sequence
from typing import Any, TypeVar

from ray.exceptions import RayError, RayTaskError

from coa.errors import ToolDown
from coa.tools.base import ToolCall
from coa.tools.client import Replies
from coa.tools.mcp.binding import McpBinding

T = TypeVar("T")


class RemoteExecutor:
    """`coa.tools.client.Executor` over an actor's handle. An exception raised by the executor itself passes through."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def start(
        self, caller: str, calls: Sequence[tuple[Hashable, ToolCall]], acknowledged: Sequence[Hashable]
    ) -> str:
        return await reached(self._handle.start.remote(caller, list(calls), list(acknowledged)))

    async def replies(self, caller: str, incarnation: str, after: int) -> Replies:
        return await reached(self._handle.replies.remote(caller, incarnation, after))

    async def cancel(self, caller: str, ids: Sequence[Hashable]) -> None:
        await reached(self._handle.cancel.remote(caller, list(ids)))

    async def mcp(self) -> dict[str, McpBinding]:
        """See `actors.tools.executor.ToolExecutor.mcp`; raises ToolDown."""
        return await reached(self._handle.mcp.remote())


async def reached(answer: Awaitable[T]) -> T:
    """Awaits an executor's answer; raises ToolDown if the executor is gone."""
    try:
        return await answer
    except RayTaskError:
        raise
    except RayError as error:
        raise ToolDown(f"the tool executor is gone: {type(error).__name__}") from error
