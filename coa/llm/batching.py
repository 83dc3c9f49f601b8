"""Batches concurrent calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from coa.errors import InfrastructureError

A = TypeVar("A")
B = TypeVar("B")


class CallBatcher(Generic[A, B]):
    """Gathers the calls of one turn of the event loop into one `call_many`."""

    def __init__(self, call_many: Callable[[Sequence[A]], Awaitable[Sequence[B | InfrastructureError]]]) -> None:
        self._call_many = call_many
        self._gathering: list[A] = []
        self._batch: asyncio.Future[Sequence[B | InfrastructureError]] | None = None

    async def __call__(self, item: A, /) -> B:
        """The item's result; raises the InfrastructureError that stands in its place."""
        if self._batch is None:
            self._batch = asyncio.ensure_future(self._deliver())
        batch, index = self._batch, len(self._gathering)
        self._gathering.append(item)
        # Shielded: a caller that is cancelled must not take the others' calls with it.
        result = (await asyncio.shield(batch))[index]
        if isinstance(result, InfrastructureError):
            raise result
        return result

    async def _deliver(self) -> Sequence[B | InfrastructureError]:
        await asyncio.sleep(0)  # everything that is ready to call now joins
        items, self._gathering, self._batch = self._gathering, [], None
        return await self._call_many(items)
