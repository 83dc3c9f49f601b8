"""Batches concurrent calls."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, TypeVar

from coa.concurrency import beyond_caller
from coa.errors import InfrastructureError

A = TypeVar("A")
B = TypeVar("B")


class CallBatcher(Generic[A, B]):
    """Gathers the calls of one iteration of the event loop into one call of `call_many`."""

    def __init__(self, call_many: Callable[[Sequence[A]], Awaitable[Sequence[B | InfrastructureError]]]) -> None:
        self._call_many = call_many
        self._gathering: list[A] = []
        self._batch: asyncio.Future[Sequence[B | InfrastructureError]] | None = None

    async def __call__(self, item: A, /) -> B:
        """The item's result; raises its InfrastructureError if `call_many` returned one instead."""
        if self._batch is None:
            self._batch = beyond_caller(self._deliver())
        batch, index = self._batch, len(self._gathering)
        self._gathering.append(item)
        # Shielded: a cancelled caller must not cancel the calls of the other callers.
        result = (await asyncio.shield(batch))[index]
        if isinstance(result, InfrastructureError):
            raise result
        return result

    async def _deliver(self) -> Sequence[B | InfrastructureError]:
        await asyncio.sleep(0)  # lets all calls that are ready now join
        items, self._gathering, self._batch = self._gathering, [], None
        return await self._call_many(items)
