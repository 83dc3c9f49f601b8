"""Waiting for what normally happens at once: a test waits long before it calls it missing, so that its verdict is the
same on a busy machine."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PATIENCE_S = 300.0
"""Only what never happens takes so long."""
LOOK_S = 0.01


def soon(holds: Callable[[], T]) -> T:
    """The first true value; where none comes, the last one."""
    end = time.monotonic() + PATIENCE_S
    while not (found := holds()) and time.monotonic() < end:
        time.sleep(LOOK_S)
    return found


async def until(holds: Callable[[], object]) -> None:
    """Returns once it holds, while the event loop goes on; raises TimeoutError where it never does."""
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(LOOK_S)
