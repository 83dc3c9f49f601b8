"""Clients of tool executors that are actors, and of the dispatcher before them."""

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from typing import TypeVar

from ray.exceptions import RayError, RayTaskError

from actors.handles import Handle, kill, start_actor
from actors.tools.executor import ExecutorConfig, ToolExecutor
from actors.tools.stats import ToolStats
from coa.errors import ExecutorLost
from coa.tools.base import Tool, ToolCall
from coa.tools.client import Replies
from coa.tools.mcp.binding import McpBinding

T = TypeVar("T")


class ToolClient:
    """`coa.tools.client.Executor` over the handle of an actor: of a run's dispatcher, or of a single executor. An
    exception raised by the actor itself passes through. May be sent to other processes of the cluster."""

    def __init__(self, handle: Handle) -> None:
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

    async def mistake(self) -> str:
        """The mistake in the configuration because of which there are no tools, or ""."""
        return await reached(self._handle.mistake.remote())

    async def check(self) -> None:
        """Raises what keeps the dispatcher from making calls."""
        await self._handle.check.remote()

    def refuse(self, callers: Sequence[str]) -> None:
        """Calls of these callers are refused from now on; does not wait."""
        self._handle.refuse.remote(list(callers))

    def kill(self) -> None:
        kill(self._handle)

    async def mcp(self) -> dict[str, McpBinding]:
        """See `actors.tools.executor.ToolExecutor.mcp`; raises ToolDown."""
        return await reached(self._handle.mcp.remote())

    async def stats(self) -> dict[str, ToolStats]:
        """Counts of the calls by tool; raises ExecutorLost."""
        return await reached(self._handle.stats.remote())


class ExecutorActor(ToolClient):
    """A `actors.tools.dispatcher.Worker` that is an actor. Ray neither restarts it nor repeats its calls: the
    dispatcher does both, and counts them."""

    def __init__(
        self, make_tools: Callable[[], Mapping[str, Tool]], config: ExecutorConfig, options: Mapping[str, object]
    ) -> None:
        """options: Ray's, such as where it is placed."""
        super().__init__(start_actor(ToolExecutor, {"max_concurrency": 10_000, **options}, make_tools, config))


async def reached(answer: Awaitable[T]) -> T:
    """Awaits an executor's answer; raises ExecutorLost if its process is gone or can't be reached."""
    try:
        return await answer
    except RayTaskError:
        raise
    except RayError as error:
        raise ExecutorLost(f"the tool executor is gone: {type(error).__name__}") from error
