"""The caller's end of a tool executor: calls made in the same moment travel together."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from coa.errors import InfrastructureError
from coa.tools.base import ToolCall

CallMany = Callable[[Sequence[ToolCall]], Awaitable[Sequence[str | InfrastructureError]]]


class ToolClient:
    """Gathers the calls of one turn of the event loop into one `call_many`."""

    def __init__(self, call_many: CallMany) -> None:
        self._call_many = call_many
        self._gathering: list[ToolCall] = []
        self._batch: asyncio.Future[Sequence[str | InfrastructureError]] | None = None

    async def __call__(self, call: ToolCall) -> str:
        """The observation's text; raises the InfrastructureError that the executor met."""
        if self._batch is None:
            self._batch = asyncio.ensure_future(self._deliver())
        batch, index = self._batch, len(self._gathering)
        self._gathering.append(call)
        # Shielded: an episode that is cancelled must not take the others' calls with it.
        result = (await asyncio.shield(batch))[index]
        if isinstance(result, InfrastructureError):
            raise result
        return result

    async def _deliver(self) -> Sequence[str | InfrastructureError]:
        await asyncio.sleep(0)  # everything that is ready to call a tool now joins
        calls, self._gathering, self._batch = self._gathering, [], None
        return await self._call_many(calls)
