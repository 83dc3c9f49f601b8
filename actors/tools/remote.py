"""Client of a tool executor that is an actor."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import ray
from ray.exceptions import RayError, RayTaskError

from actors.tools.executor import ExecutorConfig, ToolExecutor
from actors.tools.stats import ToolStats
from coa.errors import ExecutorLost
from coa.tools.base import Tool, ToolCall
from coa.tools.client import Replies
from coa.tools.mcp.binding import McpBinding

T = TypeVar("T")


class RemoteExecutor:
    """`coa.tools.client.Executor` over an actor's handle. An exception raised by the executor itself passes through."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    async def start(
        self,
        caller: str,
        calls: Sequence[tuple[Hashable, ToolCall]],
        acknowledged: Sequence[Hashable],
        incarnation: str,
    ) -> str:
        return await reached(self._handle.start.remote(caller, list(calls), list(acknowledged), incarnation))

    async def replies(self, caller: str, incarnation: str, after: int) -> Replies:
        return await reached(self._handle.replies.remote(caller, incarnation, after))

    async def cancel(self, caller: str, ids: Sequence[Hashable]) -> None:
        await reached(self._handle.cancel.remote(caller, list(ids)))

    async def mcp(self) -> dict[str, McpBinding]:
        """See `actors.tools.executor.ToolExecutor.mcp`; raises ToolDown."""
        return await reached(self._handle.mcp.remote())


class ExecutorActor(RemoteExecutor):
    """A `actors.tools.dispatcher.Worker` that is an actor. Ray neither restarts it nor repeats its calls: the
    dispatcher does both, and counts them."""

    def __init__(
        self, make_tools: Callable[[], Mapping[str, Tool]], config: ExecutorConfig, options: Mapping[str, Any]
    ) -> None:
        """options: Ray's, such as where it is placed."""
        make: Any = ray.remote(ToolExecutor).options(max_concurrency=10_000, **options)
        super().__init__(make.remote(make_tools, config))

    async def mistake(self) -> str:
        return await reached(self._handle.mistake.remote())

    async def stats(self) -> dict[str, ToolStats]:
        return await reached(self._handle.stats.remote())

    def kill(self) -> None:
        ray.kill(self._handle)


async def reached(answer: Awaitable[T]) -> T:
    """What an executor answers; raises ExecutorLost if its process is gone or can't be reached."""
    try:
        return await answer
    except RayTaskError:
        raise
    except RayError as error:
        raise ExecutorLost(f"the tool executor is gone: {type(error).__name__}") from error
