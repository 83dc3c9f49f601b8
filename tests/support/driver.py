"""Drives a rollout engine as a pool does, in the same process."""

import asyncio
from collections.abc import Sequence
from typing import Any

from actors.messages import Ended, EpisodeId, Event, EventBatch, Order, Terminal


class Driver:
    """The engine's orders and events, with the one poll at a time that it answers."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self.events: list[Event] = []
        self._waiting: dict[EpisodeId, asyncio.Future[Event]] = {}
        self._reading: asyncio.Future[None] | None = None

    async def read(self, wait_s: float = 60.0) -> EventBatch:
        batch = await self.engine.events(len(self.events), wait_s)
        assert batch.first == len(self.events)
        self.events += batch.events
        return batch

    async def play(self, orders: Sequence[Order]) -> list[Any]:
        """What became of the orders, in order; others may be played at the same time."""
        ids = [order.id for order in orders]
        ended = [self._waiting.setdefault(id, asyncio.get_running_loop().create_future()) for id in ids]
        await self.engine.start(orders)
        if self._reading is None or self._reading.done():
            self._reading = asyncio.ensure_future(self._read())
            self._reading.add_done_callback(self._fail)
        for event in await asyncio.gather(*ended):
            assert isinstance(event, Ended), event
        made = await self.engine.take(ids)
        await self.engine.acknowledge(ids)
        return list(made)

    async def _read(self) -> None:
        while self._waiting:
            for event in (await self.read()).events:
                if isinstance(event, Terminal) and event.id in self._waiting:
                    self._waiting.pop(event.id).set_result(event)

    def _fail(self, reading: asyncio.Future[None]) -> None:
        """What a poll raises, everybody who waits for an event raises."""
        if not reading.cancelled() and (error := reading.exception()) is not None:
            for waiting in self._waiting.values():
                waiting.set_exception(error)
