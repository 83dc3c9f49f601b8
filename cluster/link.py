"""Calls of one engine: their errors change its health, and a call of an engine that has ended fails at once."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ray.exceptions import RayError

from cluster.engine_actor import Engine, fault_of, why_of
from cluster.health import FINAL, Fault, Health, State
from coa.errors import EngineDied, InfrastructureError

T = TypeVar("T")
CALL_FAILED = (RayError, InfrastructureError)
"""What a call of an engine raises; a defect in it is a RayError too, and told by its cause."""
TICK_S = 1.0
"""Between two looks at the clock, and between two tries of what could not be reached."""


class Changes:
    """Lets many wait until something is so: `changed` makes them look again."""

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        """tell: is called at every change, too."""
        self._next, self._tell = asyncio.Event(), tell

    def changed(self) -> None:
        self._tell()
        self._next.set()
        self._next = asyncio.Event()

    async def wait_for(self, holds: Callable[[], Any]) -> None:
        while not holds():
            await self._next.wait()


class Link:
    """One start of an engine, its health, and the calls that are under way."""

    def __init__(self, engine: Engine, health: Health, changes: Changes) -> None:
        self.engine, self.health, self.changes = engine, health, changes
        self.now = asyncio.get_running_loop().time
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the engine is DEAD or RETIRED; a defect that a call raised is its exception."""
        self.served_since: float | None = None
        """When it was well for the first time."""
        self._aside: set[asyncio.Task[None]] = set()

    @property
    def served(self) -> bool:
        """Whether it was ever well."""
        return self.served_since is not None

    def become(self, health: Health) -> None:
        self.health = health
        if health.state is State.HEALTHY and self.served_since is None:
            self.served_since = self.now()
        if health.state in FINAL and not self.over.done():
            self.over.set_result(None)
        self.changes.changed()

    def raised(self, error: BaseException) -> None:
        """Tells the engine's health of a failed call; a defect ends the engine, and is raised to whoever keeps it."""
        fault = fault_of(error)
        if fault is not None:
            self.died(why_of(error), fault)
        elif not self.over.done():
            self.over.set_exception(error)

    def died(self, why: str, fault: Fault = Fault.GONE) -> None:
        self.become(self.health.raised(self.now(), fault, why))

    async def unless_over(self, call: Awaitable[T]) -> T:
        """What the call gives; raises EngineDied where the engine has ended, or ends first."""
        asked = asyncio.ensure_future(call)
        try:
            await asyncio.wait({asked, self.over}, return_when=asyncio.FIRST_COMPLETED)
            if self.over.done():
                raise EngineDied(self.health.why)
            return asked.result()
        finally:
            asked.cancel()

    async def watched(self, call: Awaitable[T]) -> T:
        """What the call gives; its health looks at the clock meanwhile, and may end it."""
        asked = asyncio.ensure_future(call)
        try:
            while not asked.done():
                began = self.now()
                await asyncio.wait({asked}, timeout=TICK_S)
                late = self.now() - began - TICK_S
                if late > TICK_S:  # this process stood still, and could not hear what the engine had to say
                    self.health = self.health.excused(late)
                if not asked.done():
                    self.become(self.health.tick(self.now()))
            return asked.result()
        finally:
            asked.cancel()

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Tries what may be sent again until it is there; raises EngineDied where the engine has ended."""
        while not self.over.done():
            try:
                return await call()
            except CALL_FAILED as error:
                self.raised(error)
            await asyncio.sleep(TICK_S)
        raise EngineDied(self.health.why)

    async def ask(self, call: Callable[[Engine], Awaitable[T]]) -> T:
        """What the engine answers; raises EngineDied where it is gone, and what else the call met."""
        try:
            return await self.unless_over(call(self.engine))
        except CALL_FAILED as error:
            if isinstance(error, InfrastructureError) and fault_of(error) is None:
                raise
            self.raised(error)
            raise EngineDied(why_of(error)) from error

    def beside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs `work` until it ends or the engine does. What it raises else, its caller can't hear: it goes to the
        engine's health, and a defect to whoever keeps the engine."""
        task = asyncio.ensure_future(work)
        self._aside.add(task)

        def ended(task: "asyncio.Task[None]") -> None:
            self._aside.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and not isinstance(error, EngineDied):
                self.raised(error)

        task.add_done_callback(ended)
        return task

    def close(self) -> None:
        """Ends the engine and all that waits for it."""
        for task in self._aside:
            task.cancel()
        self.become(self.health.retired())
        with suppress(RayError):  # what can't be reached is not waited for either
            self.engine.kill()
