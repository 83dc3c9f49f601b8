"""Small helpers around asyncio that several packages share."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")
Work = Coroutine[Any, Any, T]
"""A coroutine: work that begins once a task or an `await` takes it."""
Spawn = Callable[[Work[None]], object]
"""Runs work in a task of its own, which the giver of this function cancels at its own end, and whose error it takes."""


async def together(work: Iterable[Awaitable[T]]) -> list[T]:
    """Returns the results of all of them; the first failure cancels the others, waits for their end, and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def beyond_caller(work: Work[T]) -> asyncio.Task[T]:
    """A task for several callers, or one that outlives its caller. Its context is empty: Ray cancels all calls that a
    cancelled one has begun, and knows them by their context."""
    return asyncio.get_running_loop().create_task(work, context=Context())


def doubling(first_s: float, longest_s: float = float("inf")) -> Iterator[float]:
    """Pauses between tries, without end: each twice as long as the one before, up to the longest."""
    pause_s = first_s
    while True:
        yield min(pause_s, longest_s)
        pause_s = min(2 * pause_s, longest_s)


def within(patience_s: float, pauses: Iterable[float]) -> Iterator[float]:
    """The pauses that come to `patience_s` in all, the last of them cut: 0.5, 1, 2 and 0.3 for 3.8."""
    for pause_s in pauses:
        if patience_s <= 0:
            return
        yield min(pause_s, patience_s)
        patience_s -= pause_s
