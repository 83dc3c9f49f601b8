"""Drives episodes on a policy with tools, many at once, and grades them where a grade is wanted.

start(orders) ──► Episode.ask ──► policy ──► Episode.hear ──► tool ──► Episode.observe ──► ... ──► grade ──► results
                        events of each step go to the outbox, the terminal one last

It needs an event loop and nothing else: an engine's actor runs one on vLLM, a server in its own process, and tests on
a scripted policy.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Protocol

from actors.messages import (
    Advanced,
    CallId,
    Cancelled,
    Ended,
    EpisodeId,
    EpisodeOrder,
    Event,
    EventLevel,
    Failed,
    Streamed,
)
from actors.outbox import Outbox
from actors.rollout.clocks import TimeLimits
from actors.rollout.config import SamplingConfig
from coa.agent.codec import Codec, Stops
from coa.agent.episode import Ask, Episode
from coa.agent.journal import Said
from coa.agent.profiles import profile as find_profile
from coa.errors import InfrastructureError, ToolDown
from coa.grading.rewards import RewardConfig, score
from coa.seeds import derive
from coa.tools.base import ToolCall
from coa.tools.client import RetryConfig
from coa.types import Scored, Tokens, Trajectory

Result = Scored | Trajectory
"""A trajectory where no grade was wanted."""


class Policy(Protocol):
    """What a runner needs of an adapter."""

    @property
    def limits(self) -> TimeLimits: ...

    async def generate(
        self,
        ask: Ask,
        *,
        sampling: SamplingConfig,
        stops: Stops,
        seed: int,
        priority: int,
        hear: Callable[[Tokens], None] | None,
    ) -> Said: ...


class Tools(Protocol):
    async def call(self, id: CallId, call: ToolCall) -> str:
        """Raises ToolDown. Sent again with its id, it is the same call. Cancelled, it ends the call."""
        ...

    def acknowledge(self, ids: Sequence[CallId]) -> None:
        """These are never sent again."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, with the tool calls that are done for good once the reader has it."""

    event: Event
    calls: tuple[CallId, ...] = ()


@dataclass(slots=True)
class _Run:
    """An episode under way, and what it is driven with."""

    order: EpisodeOrder
    episode: Episode
    grading: list[CallId] = field(default_factory=list)
    """Calls that graders made."""


class EpisodeRunner:
    """Plays episodes. Seeds depend on run seed, task, group, sample and turn, and on nothing else."""

    def __init__(
        self,
        policy: Policy,
        tools: Tools,
        *,
        codec: Codec,
        reward: RewardConfig,
        seed: int,
        retry: RetryConfig,
        outbox: Outbox[Entry],
    ) -> None:
        self._policy, self._tools, self._codec = policy, tools, codec
        self._reward, self._seed, self._retry, self._outbox = reward, seed, retry, outbox
        self._tasks: dict[EpisodeId, asyncio.Task[Result]] = {}
        self.results: dict[EpisodeId, Result] = {}
        """Of episodes that have ended, until they are forgotten."""
        self.retried = 0
        """Calls of tools and graders that were tried again."""
        self._stops = lru_cache(None)(lambda profile: codec.stops(find_profile(profile)))

    @property
    def running(self) -> int:
        return len(self._tasks)

    def start(self, orders: Iterable[EpisodeOrder]) -> None:
        """Plays episodes, from their journals on. One that is known already, under way or ended, is left as it is."""
        for order in orders:
            if order.id not in self._tasks and order.id not in self.results:
                run = _Run(order, self._episode_of(order))
                task = self._tasks[order.id] = asyncio.ensure_future(self._play(run))
                task.add_done_callback(partial(self._end, run))

    async def cancel(self, ids: Iterable[EpisodeId]) -> None:
        """Ends episodes, with their requests and their tool calls, and returns once they have ended. Those that have
        ended before are forgotten; those that are unknown are ignored."""
        ids = list(ids)
        ending = [self._tasks[id] for id in ids if id in self._tasks]
        for task in ending:
            task.cancel()
        if ending:
            await asyncio.wait(ending)
        self.forget(ids)

    def forget(self, ids: Iterable[EpisodeId]) -> None:
        for id in ids:
            self.results.pop(id, None)

    def acknowledge(self, entries: Iterable[Entry]) -> None:
        """Whoever reads the outbox has these."""
        self._tools.acknowledge([call for entry in entries for call in entry.calls])

    def _episode_of(self, order: EpisodeOrder) -> Episode:
        return Episode.resume(order.task, order.id.sample, order.journal, codec=self._codec, agent=order.agent)

    def _end(self, run: _Run, task: asyncio.Task[Result]) -> None:
        id = run.order.id
        del self._tasks[id]
        if task.cancelled():
            self._outbox.put(Entry(Cancelled(id=id), tuple(run.grading)))
            return
        match task.exception():
            case None:
                self.results[id] = task.result()
                self._outbox.put(Entry(Ended(id=id), tuple(run.grading)))
            case InfrastructureError() as error:
                # What graders were told stays with the executors: the episode may be graded again.
                self._outbox.put(
                    Entry(
                        Failed(
                            id=id,
                            where=type(error).__name__,
                            why=str(error),
                            tokens=run.episode.length,
                            tool_calls=run.episode.tool_calls,
                        )
                    )
                )
            case defect:
                self._outbox.fail(defect)

    async def _play(self, run: _Run) -> Result:
        order, episode = run.order, run.episode
        async with self._policy.limits.within(order.limit_s):
            while episode.status is None:
                if episode.pending is None:
                    episode.hear(await self._turn(run, episode.ask()))
                    self._outbox.put(Entry(self._advanced(run)))
                else:
                    id = CallId(order.id, episode.turns)
                    episode.observe(await self._call(id, episode.pending))
                    self._outbox.put(Entry(self._advanced(run), (id,)))
            trajectory = episode.trajectory()
            if not order.graded:
                return trajectory
            budget = order.agent.limits.max_tokens - trajectory.prompt_length
            use_tool = partial(self._call_of_grader, run)
            return await score(trajectory, order.task, self._reward, budget=budget, use_tool=use_tool)

    @staticmethod
    def _advanced(run: _Run) -> Advanced:
        return Advanced(id=run.order.id, delta=run.episode.latest)

    async def _turn(self, run: _Run, ask: Ask) -> Said:
        order = run.order
        id = order.id

        def hear(token_ids: Tokens) -> None:
            self._outbox.put(Entry(Streamed(id=id, token_ids=token_ids)))

        return await self._policy.generate(
            ask,
            sampling=order.sampling,
            stops=self._stops(order.task.profile),
            seed=derive(self._seed, id.task, id.group, id.sample, ask.turn),
            priority=max(id.group, 0),  # older groups first: their deadline comes first
            hear=hear if order.level is EventLevel.TOKENS else None,
        )

    async def _call_of_grader(self, run: _Run, call: ToolCall) -> str:
        id = CallId(run.order.id, run.episode.turns, 1 + len(run.grading))
        run.grading.append(id)
        return await self._call(id, call)

    async def _call(self, id: CallId, call: ToolCall) -> str:
        """The failing call is tried again, under its id, and not the turn that made it: sampled again, it might make
        no call, or another one, and what is trained on would be what did not fail."""
        for pause_s in self._retry.pauses():
            try:
                return await self._tools.call(id, call)
            except ToolDown:
                self.retried += 1
            await asyncio.sleep(pause_s)
        return await self._tools.call(id, call)
