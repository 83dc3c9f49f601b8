"""Drives episodes on a policy with tools, many at once, and grades them where a grade is wanted.

start(orders) ──► Episode.ask ──► policy ──► Episode.hear ──► tool ──► Episode.observe ──► ... ──► grade ──► results
                        events of each step go to the outbox, the terminal one last

It needs an event loop and nothing else: an engine's actor runs one on vLLM, a server in its own process, and tests on
a scripted policy.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Protocol

from actors.messages import (
    EVALUATION,
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
from coa.agent.journal import Said, length_of
from coa.agent.profiles import profile as find_profile
from coa.errors import CallLost, EmptyCompletion, EpisodeTimeout, InfrastructureError
from coa.grading.rewards import RewardConfig, score
from coa.seeds import derive
from coa.tools.base import ToolCall
from coa.tools.client import RetryConfig
from coa.types import Scored, Tokens, Trajectory

logger = logging.getLogger(__name__)
DEFECT = "Defect"
"""Where an episode failed that met a defect of this system, rather than a failure of a part of it."""
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
        stream: bool,
        salt: str,
    ) -> Said:
        """`hear` is told the tokens of the turn as they come, or, if not `stream`, those that it had when this call is
        cancelled."""
        ...


class Tools(Protocol):
    async def call(self, id: CallId, call: ToolCall) -> str:
        """Returns the observation's text; raises ToolDown. Sent again with its id, it is the same call. Cancelling it
        ends the call."""
        ...

    def acknowledge(self, ids: Sequence[CallId]) -> None:
        """These calls will never be sent again."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, with the tool calls whose results nobody needs any more once the reader has the event."""

    event: Event
    calls: tuple[CallId, ...] = ()


@dataclass(slots=True)
class _Run:
    """An episode under way, and what it is driven with."""

    order: EpisodeOrder
    episode: Episode
    priority: int
    """Of its requests: smaller ones go first."""
    grading: list[CallId] = field(default_factory=list)
    """Calls that graders made."""
    lost: list[CallId] = field(default_factory=list)
    """Calls that executors refuse to make again (`CallLost`), until the episode is played again from the driver."""


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
        isolate: bool = False,
        count: Callable[[int], None] = lambda episodes: None,
    ) -> None:
        """`isolate`: a defect fails the episode that meets it, and no other; else it is raised to whoever reads the
        outbox. `count`: is told how many episodes are under way, whenever that changes."""
        self._isolate, self._count = isolate, count
        self._policy, self._tools, self._codec = policy, tools, codec
        self._reward, self._seed, self._retry, self._outbox = reward, seed, retry, outbox
        self._tasks: dict[EpisodeId, asyncio.Task[Result]] = {}
        self._ended_unheard: set[EpisodeId] = set()
        """Episodes that failed or were cancelled, while the event that says so is not acknowledged."""
        self._newest_group = 0
        self.results: dict[EpisodeId, Result] = {}
        """The results of episodes that have ended, until they are forgotten."""
        self.retried = 0
        """Calls of tools and graders that were tried again."""
        self._stops = lru_cache(None)(lambda profile: codec.stops(find_profile(profile)))

    def start(self, orders: Iterable[EpisodeOrder]) -> None:
        """Plays episodes, from their journals on.

        An episode that is known already is left as it is: one that is under way, one whose result is kept, and one
        whose failure or cancellation is not acknowledged yet, since its order was sent before the sender knew of that.
        """
        for order in orders:
            if not any(order.id in known for known in (self._tasks, self.results, self._ended_unheard)):
                run = _Run(order, self._episode_of(order), self._priority_of(order.id))
                task = self._tasks[order.id] = asyncio.ensure_future(self._play(run))
                task.add_done_callback(partial(self._end, run))
                self._count(len(self._tasks))

    def _priority_of(self, id: EpisodeId) -> int:
        """Older groups go first, since their deadline comes first. An episode of an evaluation waits like one of the
        newest group: it holds up no group that was there before it, and later groups can't hold it up for ever."""
        self._newest_group = max(self._newest_group, id.group)
        return self._newest_group if id.group == EVALUATION else id.group

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
        """The reader of the outbox has these entries."""
        entries = list(entries)
        self._ended_unheard.difference_update(
            entry.event.id for entry in entries if isinstance(entry.event, Failed | Cancelled)
        )
        self._tools.acknowledge([call for entry in entries for call in entry.calls])

    def _episode_of(self, order: EpisodeOrder) -> Episode:
        return Episode.resume(order.task, order.id.sample, order.journal, codec=self._codec, agent=order.agent)

    def _end(self, run: _Run, task: asyncio.Task[Result]) -> None:
        id = run.order.id
        del self._tasks[id]
        self._count(len(self._tasks))
        if task.cancelled():
            self._ended_unheard.add(id)
            self._outbox.put(Entry(Cancelled(id=id), tuple(run.grading)))
            return
        match task.exception():
            case None:
                self.results[id] = task.result()
                self._outbox.put(Entry(Ended(id=id), tuple(run.grading)))
            case InfrastructureError() as error:
                self._fail(run, type(error).__name__, str(error))
            case defect if self._isolate:
                logger.error("an episode met a defect", exc_info=defect)
                self._fail(run, DEFECT, "the server failed at this episode")
            case defect:
                self._outbox.fail(defect)

    def _fail(self, run: _Run, where: str, why: str) -> None:
        """What graders were told stays with the executors: the episode may be graded again. A call that was lost may
        be made again if the driver plays the episode again."""
        id, episode = run.order.id, run.episode
        self._ended_unheard.add(id)
        tokens = length_of(episode.journal)
        failed = Failed(id=id, where=where, why=why, tokens=tokens, tool_calls=episode.tool_calls)
        self._outbox.put(Entry(failed, tuple(run.lost)))

    async def _play(self, run: _Run) -> Result:
        order, limits = run.order, self._policy.limits
        if order.id.group != EVALUATION:
            async with limits.within(order.limit_s):
                await self._converse(run)
                return await self._result_of(run)
        try:
            async with limits.within(order.limit_s):
                await self._converse(run)
        except EpisodeTimeout:
            # That the policy is slow is a result of the evaluation.
            run.episode.cut_off()
        # That a grader is slow is none, so it has a limit of its own.
        async with limits.within(order.agent.limits.max_seconds):
            return await self._result_of(run)

    async def _converse(self, run: _Run) -> None:
        """Turns and tool calls, until the episode has a status."""
        episode = run.episode
        while episode.status is None:
            if episode.pending is None:
                episode.hear(await self._turn(run, episode.ask()))
                self._outbox.put(Entry(self._advanced(run)))
            else:
                id = CallId(run.order.id, episode.turns)
                episode.observe(await self._call(run, id, episode.pending))
                self._outbox.put(Entry(self._advanced(run), (id,)))

    async def _result_of(self, run: _Run) -> Result:
        """The trajectory, graded where the order asks for that."""
        order, trajectory = run.order, run.episode.trajectory()
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

        said = await self._policy.generate(
            ask,
            sampling=order.sampling,
            stops=self._stops(order.task.profile),
            seed=derive(self._seed, id.task, id.group, id.sample, ask.turn),
            priority=run.priority,
            hear=None if order.level is EventLevel.TURNS else hear,
            stream=order.level is EventLevel.TOKENS,
            salt=order.salt,
        )
        if not len(said.token_ids):
            raise EmptyCompletion(f"turn {ask.turn} has no token")
        return said

    async def _call_of_grader(self, run: _Run, call: ToolCall) -> str:
        id = CallId(run.order.id, run.episode.turns, 1 + len(run.grading))
        run.grading.append(id)
        return await self._call(run, id, call)

    async def _call(self, run: _Run, id: CallId, call: ToolCall) -> str:
        """Makes a call, and tries it again where it fails. The turn that made the call is not sampled again: another
        turn might make no call or another one, and the policy would be trained on whatever does not fail."""
        try:
            return await self._retry.call(partial(self._tools.call, id, call), self._count_retry)
        except CallLost:
            run.lost.append(id)
            raise

    def _count_retry(self) -> None:
        self.retried += 1
