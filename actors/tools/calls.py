"""Tool calls deduplicated by id: a completed call is not made again before its result is acknowledged.

    known and finished -> its result        known and under way -> join it        else -> make it

An episode that moves to another engine sends its call again from there, and gets the result that is kept or joins the
call that is under way. Failures are not kept, except that of a call that must not be made again (`CallLost`).
"""

import asyncio
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

from actors.outbox import Outbox, pace_of
from coa.concurrency import beyond_caller
from coa.errors import CallLost, ToolDown
from coa.tools.base import ToolCall
from coa.tools.client import POLL_S, Replies

Reply = tuple[Hashable, str | Exception]


@dataclass(eq=False, slots=True)
class _Known:
    call: ToolCall
    task: asyncio.Task[str | ToolDown]
    callers: set[str] = field(default_factory=set)
    """Names of the callers that wait for the result."""


class KnownCalls:
    """The base of an actor that answers calls by id (`coa.tools.client.Executor`): calls that are under way or whose
    results are kept, and the unacknowledged replies of each caller. A subclass says how a call is made."""

    def __init__(self, keep: int) -> None:
        """`keep`: maximum number of kept results; the oldest are dropped, even if they were not acknowledged."""
        self.incarnation = uuid4().hex
        self._keep = keep
        self._known: dict[Hashable, _Known] = {}
        self._finished: dict[Hashable, str | CallLost] = {}
        """Results, the oldest first."""
        self._outboxes: dict[str, Outbox[Reply]] = {}
        self._refused: set[str] = set()

    async def _answer(self, call: ToolCall) -> str | ToolDown:
        """Makes a call."""
        raise NotImplementedError

    async def start(
        self,
        caller: str,
        calls: Sequence[tuple[Hashable, ToolCall]],
        acknowledged: Sequence[Hashable] = (),
        incarnation: str = "",
    ) -> str:
        """Starts calls, or joins those that are known; starts nothing if `incarnation` names another one than this.
        Returns this executor's incarnation, or "" to a caller that is refused."""
        if caller in self._refused:
            return ""
        if incarnation not in ("", self.incarnation):
            return self.incarnation
        for id in acknowledged:
            if self._finished.pop(id, None) is not None:
                del self._known[id]
        for id, call in calls:
            self._start(caller, id, call)
        return self.incarnation

    def _start(self, caller: str, id: Hashable, call: ToolCall) -> None:
        known = self._known.get(id)
        if known is not None and known.call != call:
            # The turn was resampled on another engine, under other weights, and makes a different call.
            self._forget(id)
            known.task.cancel()
            known = None
        if id in self._finished:
            self._tell(caller, (id, self._finished[id]))
            return
        if known is None:
            known = self._known[id] = _Known(call, beyond_caller(self._answer(call)))
            known.task.add_done_callback(lambda _: self._end(id, known))
        known.callers.add(caller)

    def _end(self, id: Hashable, known: _Known) -> None:
        if self._known.get(id) is not known:
            return  # cancelled, or replaced
        reply: str | Exception
        if known.task.cancelled() or (error := known.task.exception()) is not None:
            # The executor turns every exception of a tool into ToolDown, so this is a bug in the executor.
            reply = RuntimeError(f"{known.call.tool}: {'cancelled' if known.task.cancelled() else repr(error)}")
        else:
            reply = known.task.result()
        if isinstance(reply, str | CallLost):
            self._finished[id] = reply
            while len(self._finished) > self._keep:
                self._forget(next(iter(self._finished)))
        else:
            self._forget(id)
        for caller in known.callers:
            self._tell(caller, (id, reply))

    async def replies(self, caller: str, incarnation: str, after: int) -> Replies:
        if incarnation != self.incarnation or caller in self._refused:
            return Replies("", 0, ())
        outbox = self._outbox_of(caller)
        outbox.acknowledge(after)
        return Replies(self.incarnation, *await outbox.next(POLL_S))

    async def cancel(self, caller: str, ids: Iterable[Hashable]) -> None:
        """Ends calls that no other caller waits for, and returns once they have ended."""
        ending = []
        for id in ids:
            known = self._known.get(id)
            if known is None or id in self._finished:
                continue
            known.callers.discard(caller)
            if not known.callers:
                self._forget(id)
                known.task.cancel()
                ending.append(known.task)
        if ending:
            await asyncio.wait(ending)

    async def refuse(self, callers: Iterable[str]) -> None:
        """Refuses further calls and replies to these callers. Their calls under way continue, so that the engines that
        take over their episodes can join them."""
        for caller in callers:
            self._refused.add(caller)
            if (outbox := self._outboxes.pop(caller, None)) is not None:
                outbox.fail(ToolDown(f"calls of {caller} are refused: it was replaced"))
            for known in self._known.values():
                known.callers.discard(caller)

    def _forget(self, id: Hashable) -> None:
        del self._known[id]
        self._finished.pop(id, None)

    def _tell(self, caller: str, reply: Reply) -> None:
        self._outbox_of(caller).put(reply)

    def _outbox_of(self, caller: str) -> Outbox[Reply]:
        return self._outboxes.setdefault(caller, Outbox(lambda: pace_of(len(self._known) - len(self._finished))))
