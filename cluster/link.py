"""Calls of one engine: their errors update its health, and calls of an ended engine fail at once."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Concatenate, ParamSpec, TypeVar

from ray.exceptions import RayError

from cluster.engine_actor import Engine, fault_of, why_of
from cluster.health import FINAL, Fault, Health, State
from coa.concurrency import Work
from coa.errors import EngineDied, InfrastructureError

T = TypeVar("T")
P = ParamSpec("P")
CALL_FAILED = (RayError, InfrastructureError)
"""Exceptions of an engine's calls. A bug in the engine is a RayError too, recognized by its cause."""
TICK_S = 1.0
"""Seconds between two checks of the time limits, and between two attempts of a failed call."""


class Changes:
    """A condition for many waiters: `changed` makes them check their predicates again."""

    def __init__(self, tell: Callable[[], None] = lambda: None) -> None:
        """tell: also called at every change."""
        self._next, self._tell = asyncio.Event(), tell

    def changed(self) -> None:
        self._tell()
        self._next.set()
        self._next = asyncio.Event()

    async def wait_for(self, holds: Callable[[], object]) -> None:
        while not holds():
            await self._next.wait()


class Link:
    """One start of an engine, its health, and the calls that are under way."""

    def __init__(self, engine: Engine, health: Health, changes: Changes) -> None:
        self.engine, self.health, self.changes = engine, health, changes
        self.now = asyncio.get_running_loop().time
        self._looked_at = self.now()
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done once the engine is DEAD or RETIRED; holds the exception if a call raised an unexpected one."""
        self.served_since: float | None = None
        """Time at which the engine was first HEALTHY."""
        self._aside: set[asyncio.Task[None]] = set()

    @property
    def served(self) -> bool:
        """Whether the engine was ever HEALTHY."""
        return self.served_since is not None

    def note(self, change: Callable[Concatenate[Health, float, P], Health], *how: P.args, **named: P.kwargs) -> None:
        """Changes the health by one of its methods, as of now. The health is looked at every TICK_S, or two: if that is
        long ago, this process was suspended and could not get the engine's answers, which is excused before any limit
        is checked."""
        now = self.now()
        late, self._looked_at = now - self._looked_at - TICK_S, now
        if late > 2 * TICK_S:
            self.health = self.health.excused(late)
        self.become(change(self.health, now, *how, **named))

    def become(self, health: Health) -> None:
        self.health = health
        if health.state is State.HEALTHY and self.served_since is None:
            self.served_since = self.now()
        if health.state in FINAL and not self.over.done():
            self.over.set_result(None)
        self.changes.changed()

    def raised(self, error: BaseException) -> None:
        """Updates the engine's health after a failed call. An unexpected exception ends the engine and is set on
        `over`."""
        fault = fault_of(error)
        if fault is not None:
            self.died(why_of(error), fault)
        elif not self.over.done():
            self.over.set_exception(error)

    def died(self, why: str, fault: Fault = Fault.GONE) -> None:
        self.note(Health.raised, fault, why)

    async def unless_over(self, call: Awaitable[T]) -> T:
        """The call's result; raises EngineDied if the engine has ended or ends first."""
        asked = asyncio.ensure_future(call)
        try:
            await asyncio.wait({asked, self.over}, return_when=asyncio.FIRST_COMPLETED)
            if self.over.done():
                raise EngineDied(self.health.why)
            return asked.result()
        finally:
            asked.cancel()

    async def watched(self, call: Awaitable[T]) -> T:
        """The call's result; meanwhile the health's time limits are checked, which may end the engine."""
        asked = asyncio.ensure_future(call)
        try:
            while not asked.done():
                await asyncio.wait({asked}, timeout=TICK_S)
                if not asked.done():
                    self.note(Health.tick)
            return asked.result()
        finally:
            asked.cancel()

    async def insist(self, call: Callable[[], Awaitable[T]]) -> T:
        """Retries an idempotent call until it succeeds; raises EngineDied if the engine has ended."""
        while not self.over.done():
            try:
                return await call()
            except CALL_FAILED as error:
                self.raised(error)
            await asyncio.sleep(TICK_S)
        raise EngineDied(self.health.why)

    async def ask(self, call: Callable[[Engine], Awaitable[T]]) -> T:
        """The engine's answer; raises EngineDied if the call shows that the engine has failed, or the call's own
        InfrastructureError."""
        try:
            return await self.unless_over(call(self.engine))
        except CALL_FAILED as error:
            if isinstance(error, InfrastructureError) and fault_of(error) is None:
                raise
            self.raised(error)
            raise EngineDied(why_of(error)) from error

    def spawn(self, work: Work[None]) -> "asyncio.Task[None]":
        """Runs `work` in the background until it or the engine ends. Its errors go to `raised`, since no caller awaits
        it."""
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
        """Ends the engine and all background work."""
        for task in self._aside:
            task.cancel()
        self.become(self.health.retired())
        with suppress(RayError):  # an unreachable engine can't be killed
            self.engine.kill()
