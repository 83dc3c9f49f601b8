"""An event loop whose clock jumps to the next timer instead of waiting for it: hours pass in a blink, always alike."""

import asyncio
import heapq
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """For coroutines that wait for timers and for one another alone; raises RuntimeError where nothing can happen."""

    def __init__(self) -> None:
        super().__init__()
        self._virtual = 0.0

    def time(self) -> float:
        return self._virtual

    def run_in_executor(self, executor: Any, func: Callable[..., T], *args: Any) -> "asyncio.Future[T]":
        """What would run in a thread runs at once, and takes no time."""
        done: asyncio.Future[T] = self.create_future()
        done.set_result(func(*args))
        return done

    def _run_once(self) -> None:
        ready, scheduled = self._ready, self._scheduled  # pyright: ignore[reportAttributeAccessIssue]
        while scheduled and scheduled[0].cancelled():  # as the loop does, which would then wait for the next one
            heapq.heappop(scheduled)._scheduled = False
            self._timer_cancelled_count -= 1  # pyright: ignore[reportAttributeAccessIssue]
        if not ready:
            if not scheduled:
                raise RuntimeError("everybody waits, and nothing is left to happen")
            self._virtual = max(self._virtual, scheduled[0]._when)
        super()._run_once()  # pyright: ignore[reportAttributeAccessIssue]


def stand_still(seconds: float) -> None:
    """The process does nothing for so long."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop)
    loop._virtual += seconds


class LeapingLoop(asyncio.SelectorEventLoop):
    """A loop of real sockets whose clock can be put forward by `leap`, so that what is to happen late happens now."""

    def __init__(self) -> None:
        super().__init__()
        self.ahead = 0.0

    def time(self) -> float:
        return super().time() + self.ahead


def leaping(work: Coroutine[Any, Any, T]) -> T:
    """What the coroutine gives in such a loop."""
    with asyncio.Runner(loop_factory=LeapingLoop) as runner:
        return runner.run(work)


def leap(seconds: float) -> None:
    """Puts the clock of the running loop forward."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, LeapingLoop)
    loop.ahead += seconds


def in_virtual_time(work: Coroutine[Any, Any, T], limit_s: float = 3600.0) -> T:
    """What the coroutine gives; raises TimeoutError where that takes longer than `limit_s`, on its own clock."""

    async def within() -> T:
        async with asyncio.timeout(limit_s):
            return await work

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(within())
