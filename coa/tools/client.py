"""The client side of tool executors."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import count, islice
from typing import Protocol

from coa.bounds import AtLeast1
from coa.concurrency import beyond_caller, doubling
from coa.errors import CallLost, ExecutorLost, InfrastructureError, ToolDown
from coa.llm.batching import CallBatcher
from coa.tools.base import ToolCall, UseTool

CANCEL_S = 10.0
"""Maximum seconds that a cancelled call waits for its executor to end it."""
POLL_S = 20.0
"""Seconds after which an executor answers a poll even without a reply, so that a longer silence means that it hangs."""
ANSWER_S = 30.0
"""Seconds beyond the expected time within which an executor must answer, or its calls count as failed."""


@dataclass(frozen=True)
class RetryConfig:
    """Retries of a call whose tool or judge is down; if all attempts fail, the episode fails."""

    attempts: AtLeast1 = 5
    """Maximum attempts at a call, including the first."""
    pause_s: float = 0.5
    """Seconds of pause before the second attempt; the pause doubles for each further attempt."""

    def pauses(self) -> Iterator[float]:
        """Seconds of pause after each attempt but the last."""
        return islice(doubling(self.pause_s), self.attempts - 1)

    async def call(self, make: Callable[[], Awaitable[str]], count: Callable[[], None] = lambda: None) -> str:
        """Makes a call and tries it again if it fails; `count` is called for each further attempt. A call whose
        executor was lost is made once more at most: CallLost is raised if the second one is lost too."""
        lost = False
        for pause_s in (*self.pauses(), None):
            try:
                return await make()
            except CallLost:
                raise
            except ToolDown as error:
                if lost and isinstance(error, ExecutorLost):
                    raise CallLost(f"lost twice: {error}") from error
                lost |= isinstance(error, ExecutorLost)
                if pause_s is None:
                    raise
            count()
            await asyncio.sleep(pause_s)
        raise AssertionError("the last attempt returns or raises")


@dataclass(frozen=True, slots=True)
class Replies:
    """Results of calls, numbered without a gap from `first`: (id, the observation's text or the error)."""

    incarnation: str
    """Identifies one start of one executor."""
    first: int
    replies: tuple[tuple[Hashable, str | Exception], ...]


class Executor(Protocol):
    """A tool executor as its callers see it: calls are sent in batches, and their results arrive one by one.

    Its methods raise ToolDown if the executor can't be reached.
    """

    async def start(
        self,
        caller: str,
        calls: Sequence[tuple[Hashable, ToolCall]],
        acknowledged: Sequence[Hashable],
        incarnation: str,
    ) -> str:
        """Starts the calls; a call whose id is known already is joined instead.

        Returns the executor's incarnation, or "" if it refuses the caller.

        acknowledged: ids of calls whose results are not needed any more. incarnation: the one that the caller knows, or
        "". An executor of another incarnation starts nothing, since its predecessor may have started these calls.
        """
        ...

    async def replies(self, caller: str, incarnation: str, after: int) -> Replies:
        """Long poll: returns the replies numbered `after` and above as soon as there is one; acknowledges those below.

        Returns no replies after POLL_S; an executor with another incarnation answers at once, with an empty
        incarnation.
        """
        ...

    async def cancel(self, caller: str, ids: Sequence[Hashable]) -> None:
        """Returns once the calls have ended; calls that another caller waits for continue."""
        ...


class ToolCaller:
    """Calls tools by id.

    `await caller.call(id, call)` is an observation's text. Calls do not wait for each other; calls made at the same
    moment are sent in one batch. Raises ToolDown for a call that failed, such as one of an incarnation of the executor
    that has ended; a retry with the same id joins the call in progress or gets its stored result.
    """

    def __init__(self, executor: Executor, name: str, answer_s: float | None = ANSWER_S) -> None:
        """name: unique name of this caller. answer_s: seconds after which the calls of an executor that does not answer
        count as failed; None waits."""
        self.name = name
        self._executor, self._answer_s = executor, answer_s
        self._incarnation = ""
        """The executor's incarnation as far as is known."""
        self._acknowledged: list[Hashable] = []
        self._waiting: dict[Hashable, asyncio.Future[str]] = {}
        self._started: dict[str, set[Hashable]] = {}
        """Ids of calls that were sent and not answered, by incarnation."""
        self._after: dict[str, int] = {}
        self._polls: dict[str, asyncio.Task[None]] = {}
        self._start = CallBatcher(self._start_many)
        self._cancel = CallBatcher(self._cancel_many)

    async def call(self, id: Hashable, call: ToolCall) -> str:
        if id in self._waiting:
            raise ValueError(f"{id} is under way")
        reply = self._waiting[id] = asyncio.get_running_loop().create_future()
        incarnation = ""
        try:
            incarnation = await self._start((id, call))
            if not reply.done():
                self._started.setdefault(incarnation, set()).add(id)
                self._listen(incarnation)
            return await reply
        except asyncio.CancelledError:
            await self._end(id)
            raise
        finally:
            del self._waiting[id]
            self._started.get(incarnation, set()).discard(id)

    async def finish(self, id: Hashable, call: ToolCall) -> str:
        """As `call`, for an id that is not sent again once this has returned or raised."""
        try:
            return await self.call(id, call)
        finally:
            self.acknowledge([id])

    def in_order(self, name: Hashable) -> UseTool:
        """A function that makes calls, which are known by `name` and their order."""
        numbers = count()
        return lambda call: self.finish((name, next(numbers)), call)

    def acknowledge(self, ids: Sequence[Hashable]) -> None:
        """Marks calls that will not be sent again; the executor is told with the next calls."""
        self._acknowledged += ids

    async def _start_many(self, calls: Sequence[tuple[Hashable, ToolCall]]) -> Sequence[str | InfrastructureError]:
        acknowledged, self._acknowledged = self._acknowledged, []
        sent = self._incarnation
        try:
            async with answered_within(self._answer_s):
                incarnation = await self._executor.start(self.name, calls, acknowledged, sent)
        except InfrastructureError as error:
            return [error] * len(calls)
        if self._incarnation == sent:  # otherwise another batch has learnt of a newer one meanwhile
            self._incarnation = incarnation
        if incarnation and sent not in ("", incarnation):
            return [ExecutorLost("the tool executor was started again")] * len(calls)
        return [incarnation or ToolDown(f"calls of {self.name} are refused: it was replaced")] * len(calls)

    async def _end(self, id: Hashable) -> None:
        try:
            async with asyncio.timeout(CANCEL_S):
                await self._cancel(id)
        except (InfrastructureError, TimeoutError):
            pass  # a dead executor has ended its calls, and a hanging one must not block the caller

    async def _cancel_many(self, ids: Sequence[Hashable]) -> Sequence[None]:
        await self._executor.cancel(self.name, ids)
        return [None] * len(ids)

    def _listen(self, incarnation: str) -> None:
        if incarnation not in self._polls:
            self._polls[incarnation] = beyond_caller(self._poll(incarnation))

    async def _poll(self, incarnation: str) -> None:
        started = self._started[incarnation]
        try:
            while started:
                async with answered_within(None if self._answer_s is None else POLL_S + self._answer_s):
                    got = await self._executor.replies(self.name, incarnation, self._after.get(incarnation, 0))
                if got.incarnation != incarnation:
                    raise ExecutorLost("the tool executor was started again")
                self._after[incarnation] = got.first + len(got.replies)
                for id, reply in got.replies:
                    started.discard(id)
                    self._settle(id, reply)
        except asyncio.CancelledError:
            raise
        except BaseException as error:  # any error, including a bug of the executor, is raised in the waiting callers
            if isinstance(error, ExecutorLost) and self._incarnation == incarnation:
                self._incarnation = ""
            for id in started:
                self._settle(id, error)
            started.clear()
        finally:
            del self._polls[incarnation]

    def _settle(self, id: Hashable, reply: str | BaseException) -> None:
        future = self._waiting.get(id)
        if future is None or future.done():
            return
        if isinstance(reply, BaseException):
            future.set_exception(reply)
        else:
            future.set_result(reply)


@asynccontextmanager
async def answered_within(seconds: float | None) -> AsyncIterator[None]:
    """Raises ToolDown if the executor takes longer, as when its process is stopped or a tool blocks its event loop."""
    try:
        async with asyncio.timeout(seconds) as limit:
            yield
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise ToolDown(f"the tool executor gave no answer for {seconds:g} s") from error
