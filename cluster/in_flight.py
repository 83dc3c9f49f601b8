"""The episodes that the pool plays. If an engine dies, other engines continue its episodes after their last finished
turns."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field, replace

from actors.messages import (
    EVALUATION,
    Advanced,
    Cancelled,
    Ended,
    EpisodeId,
    EpisodeOrder,
    Event,
    EventBatch,
    Failed,
    Order,
    Result,
)
from cluster.link import TICK_S, Link
from coa.agent.journal import Delta, Said, length_of
from coa.errors import EngineDied, EpisodeFailed
from coa.planning.admission import Load


@dataclass(slots=True)
class EpisodeInFlight:
    """An episode from its order to its end, on any number of engines."""

    order: Order
    journal: list[Delta] = field(default_factory=list)
    """Turns and observations finished so far, on any engine."""
    tokens: int = 0
    """Tokens of the journal: finished since the order came to the pool, on any engine."""
    deaths: int = 0
    """Number of engines that died under the episode since its last finished turn or observation."""
    spent_s: float = 0.0
    """Seconds spent so far, not counting pauses for weights and waits for an engine."""

    def rest(self) -> Order:
        """An order for the rest of the episode; raises EpisodeFailed if its time is over. An evaluation's episode
        without time left is still given to an engine, which cuts it off and grades it."""
        limit_s = self.order.limit_s
        if limit_s is not None:
            limit_s = max(0.0, limit_s - self.spent_s)
            if not limit_s and self.order.id.group != EVALUATION:
                raise self.failed("EpisodeTimeout", f"{self.order.limit_s:g} s were not enough")
        if isinstance(self.order, EpisodeOrder):
            return replace(self.order, journal=(*self.order.journal, *self.journal), limit_s=limit_s)
        turns = tuple(delta for delta in self.journal if isinstance(delta, Said))
        return replace(self.order, journal=(*self.order.journal, *turns), limit_s=limit_s)

    def failed(self, where: str, why: str) -> EpisodeFailed:
        journal = (*self.order.journal, *self.journal)
        calls = sum(isinstance(delta, Said) for delta in journal)
        return EpisodeFailed(where, why, tokens=length_of(journal), tool_calls=calls)


@dataclass(slots=True, eq=False)
class _Playing:
    """An episode that is played on one engine."""

    episode: EpisodeInFlight
    order: Order
    """Order for the rest of the episode when it came to this engine."""
    outcome: "asyncio.Future[Result]"
    started: bool = False
    """Whether the order was sent to the engine."""
    ended: bool = False
    """Whether the episode has ended and its result is being fetched."""


class EpisodesInFlight:
    """The episodes on one engine."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._playing: dict[EpisodeId, _Playing] = {}
        self._tokens = 0
        """Sum of the episodes' tokens; kept up to date because the pool reads it for each place that it gives away."""
        self._unsent: list[_Playing] = []
        self.received = 0
        """Number of events processed."""
        self._leaving: dict[EpisodeId, int | None] = {}
        """Cancelled episodes, with the number of events after which no event is about them; None until the engine has
        answered."""
        self.loading_s = 0.0
        """Seconds for which the engine was paused for new weights."""

    @property
    def load(self) -> Load:
        return Load(self._tokens, len(self._playing))

    async def play(self, episode: EpisodeInFlight) -> Result:
        """Plays the episode to its end; raises EpisodeFailed, or EngineDied if the engine ends first. If this is
        cancelled, the episode is cancelled on the engine too."""
        link, id = self._link, episode.order.id
        if self._is_known(id):
            # Wait until no event can be about an earlier start of the same episode.
            await link.unless_over(link.changes.wait_for(lambda: not self._is_known(id)))
        if link.over.done():
            raise EngineDied(link.health.why)
        playing = _Playing(episode, episode.rest(), asyncio.get_running_loop().create_future())
        began, loading_s = link.now(), self.loading_s
        self._playing[id] = playing
        self._tokens += episode.tokens
        self._send(playing)
        try:
            return await playing.outcome
        finally:
            episode.spent_s += link.now() - began - (self.loading_s - loading_s)
            del self._playing[id]
            self._tokens -= episode.tokens
            if playing.outcome.cancelled() and playing.started and not playing.ended:
                self._leaving[id] = None
                link.spawn(self._cancel(id))
            link.changes.changed()

    def _is_known(self, id: EpisodeId) -> bool:
        return id in self._playing or id in self._leaving

    def _send(self, playing: _Playing) -> None:
        """Queues an order; orders that come one right after the other are sent in one call."""
        self._unsent.append(playing)
        if len(self._unsent) == 1:
            self._link.spawn(self._start())

    async def _start(self) -> None:
        # Places are given away one by one, each in its own turn of the event loop.
        count = 0
        while count < len(self._unsent):
            count = len(self._unsent)
            await asyncio.sleep(0)
        sent, self._unsent = self._unsent, []

        def start() -> Awaitable[None]:
            # An episode that was cancelled meanwhile must not be started.
            wanted = [playing for playing in sent if not playing.outcome.done()]
            for playing in wanted:
                playing.started = True
            return self._link.engine.start([playing.order for playing in wanted], self.received)

        await self._link.insist(start)

    async def _cancel(self, episode: EpisodeId) -> None:
        self._leaving[episode] = await self._link.insist(lambda: self._link.engine.cancel([episode]))
        self._forget()

    def _forget(self) -> None:
        """Forgets cancelled episodes about which no further event can come."""
        for episode in [one for one, last in self._leaving.items() if last is not None and last <= self.received]:
            del self._leaving[episode]
        self._link.changes.changed()

    def on_events(self, batch: EventBatch) -> None:
        """Processes the events that are new in the batch."""
        ended: list[EpisodeId] = []
        for event in batch.events[self.received - batch.first :]:
            playing = self._playing.get(event.id)
            if playing is not None and not playing.outcome.done():
                before = playing.episode.tokens
                on_event(event, playing)
                self._tokens += playing.episode.tokens - before
                if playing.ended:
                    ended.append(event.id)
        self.received = batch.first + len(batch.events)
        self._forget()
        if ended:
            self._link.spawn(self._take(ended))

    async def _take(self, ended: Sequence[EpisodeId]) -> None:
        """Fetches results into this process before it lets the engine forget them."""
        link = self._link
        while ended and not link.over.done():
            results = await asyncio.gather(*link.engine.take(ended), return_exceptions=True)
            again: list[EpisodeId] = []
            for one, result in zip(ended, results, strict=True):
                playing = self._playing.get(one)
                if isinstance(result, BaseException):
                    again.append(one)
                    link.raised(result)
                elif playing is not None and not playing.outcome.done():
                    playing.outcome.set_result(result)
            if taken := [one for one in ended if one not in again]:
                await link.insist(lambda taken=taken: link.engine.acknowledge(taken))
            ended = again
            if ended:
                await asyncio.sleep(TICK_S)

    def close(self) -> None:
        """Fails the remaining episodes with EngineDied, since the engine has ended; they continue on other engines."""
        for playing in self._playing.values():
            if not playing.outcome.done():
                playing.outcome.set_exception(EngineDied(self._link.health.why or "its engine was retired"))


def on_event(event: Event, playing: _Playing) -> None:
    match event:
        case Advanced(delta=delta):
            playing.episode.journal.append(delta)
            playing.episode.tokens += len(delta.token_ids)
            playing.episode.deaths = 0
        case Ended():
            playing.ended = True
        case Failed(where=where, why=why, tokens=tokens, tool_calls=tool_calls):
            playing.outcome.set_exception(EpisodeFailed(where, why, tokens=tokens, tool_calls=tool_calls))
        case Cancelled():
            playing.outcome.set_exception(EngineDied("the engine cancelled it"))
