"""Drives many episodes at once on a policy with tools, and grades them if the order asks for it.

start(orders) ──► Episode.ask ──► policy ──► Episode.take_turn ──► tool ──► Episode.observe ──► … ──► grade ──► results
                        events of each step go to the outbox, the terminal one last

It needs only an event loop: an engine's actor runs it on vLLM, a server runs it in its own process, and tests run it on
a scripted policy.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

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
    Order,
    Result,
    Streamed,
    TurnOrder,
)
from actors.outbox import Outbox
from actors.rollout.clocks import TimeLimits
from actors.rollout.config import SamplingConfig
from actors.rollout.kv_accounting import EpisodeCache
from coa.agent.codec import Codec, Stops
from coa.agent.episode import Ask, Episode
from coa.agent.journal import Said
from coa.agent.profiles import profile as find_profile
from coa.errors import CallLost, EmptyCompletion, EpisodeTimeout, InfrastructureError, NotFinite
from coa.grading.rewards import RewardConfig, score
from coa.seeds import derive
from coa.tools.base import ToolCall
from coa.tools.client import RetryConfig
from coa.types import Tokens

if TYPE_CHECKING:
    import vllm

logger = logging.getLogger(__name__)
DEFECT = "Defect"
"""Value of `Failed.where` if the cause is a bug in this system rather than an infrastructure failure."""
NO_STOPS = Stops((), ())
"""Those of a turn whose request says itself where it stops."""


class Policy(Protocol):
    """Interface that a runner needs of a policy adapter."""

    @property
    def limits(self) -> TimeLimits: ...

    @property
    def syncs(self) -> int:
        """How often weights were loaded."""
        ...

    async def generate(
        self,
        ask: Ask,
        *,
        sampling: "SamplingConfig | vllm.SamplingParams",
        stops: Stops,
        seed: int,
        priority: int,
        on_tokens: Callable[[Tokens], None] | None,
        stream: bool,
        cache: EpisodeCache,
    ) -> Said:
        """`on_tokens` gets the turn's tokens as they come, those that it begins with left out, or, if not `stream`,
        only the tokens so far when this call is cancelled."""
        ...


class Tools(Protocol):
    async def call(self, id: CallId, call: ToolCall) -> str:
        """Returns the observation's text; raises ToolDown. A retry with the same id is the same call. Cancelling this
        coroutine ends the call."""
        ...

    def acknowledge(self, ids: Sequence[CallId]) -> None:
        """Tells the executors that these calls will never be sent again."""
        ...


@dataclass(frozen=True, slots=True)
class Entry:
    """An event, with the tool calls whose results may be dropped once the reader has the event."""

    event: Event
    calls: tuple[CallId, ...] = ()


@dataclass(slots=True)
class _Run:
    """An episode under way, with its order."""

    order: EpisodeOrder
    episode: Episode
    priority: int
    """Priority of the episode's requests; smaller ones go first."""
    cache: EpisodeCache
    grading: list[CallId] = field(default_factory=list)
    """Calls that graders made."""
    went_on: bool = False
    """Whether the turn that another engine began has been asked for."""
    lost: list[CallId] = field(default_factory=list)
    """Calls that executors refuse to make again (`CallLost`), until the episode is played again from the driver."""

    def failed(self, where: str, why: str) -> Entry:
        """Results of graders' calls stay with the executors: the episode may be graded again. A call that was lost may
        be made again if the driver plays the episode again."""
        tokens, calls = self.episode.length, self.episode.tool_calls
        failed = Failed(id=self.order.id, where=where, why=why, tokens=tokens, tool_calls=calls)
        return Entry(failed, tuple(self.lost))


@dataclass(frozen=True, slots=True)
class _Turn:
    """A single turn under way."""

    order: TurnOrder
    grading: tuple[CallId, ...] = ()

    def failed(self, where: str, why: str) -> Entry:
        return Entry(Failed(id=self.order.id, where=where, why=why, tokens=len(self.order.prompt), tool_calls=0))


class EpisodeRunner:
    """Plays episodes. Seeds depend only on run seed, task, group, sample and turn."""

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
        """`isolate`: whether an unexpected exception fails only its own episode; otherwise it is raised to the reader
        of the outbox. `count`: called with the number of episodes under way whenever it changes."""
        self._isolate, self._count = isolate, count
        self._policy, self._tools, self._codec = policy, tools, codec
        self._reward, self._seed, self._retry, self._outbox = reward, seed, retry, outbox
        self._tasks: dict[EpisodeId, asyncio.Task[Result]] = {}
        self._ended_unreported: set[EpisodeId] = set()
        """Episodes that failed or were cancelled and whose event is not yet acknowledged."""
        self._newest_group = 0
        self.results: dict[EpisodeId, Result] = {}
        """The results of episodes that have ended, until they are forgotten."""
        self.retried = 0
        """Number of retried calls of tools and graders."""
        self._stops = lru_cache(None)(lambda profile: codec.stops(find_profile(profile)))

    @property
    def under_way(self) -> int:
        """Number of episodes under way."""
        return len(self._tasks)

    def start(self, orders: Iterable[Order]) -> None:
        """Plays episodes and single turns, continuing from their journals.

        An episode that is already known is left as it is: under way, with a kept result, or with a failure or
        cancellation that is not yet acknowledged, since its order was sent before the sender knew.
        """
        for order in orders:
            if not any(order.id in known for known in (self._tasks, self.results, self._ended_unreported)):
                run = self._run_of(order)
                work = self._play(run) if isinstance(run, _Run) else self._take_turn(run.order)
                playing = self._tasks[order.id] = asyncio.ensure_future(work)
                playing.add_done_callback(partial(self._end, run))
                self._count(self.under_way)

    def _run_of(self, order: Order) -> _Run | _Turn:
        if isinstance(order, TurnOrder):
            return _Turn(order)
        cache = EpisodeCache(order.salt, self._policy.syncs)
        task, sample, agent = order.task, order.id.sample, order.agent
        episode = Episode.resume(task, sample, order.journal, codec=self._codec, agent=agent)
        return _Run(order, episode, self._priority_of(order.id), cache)

    def _priority_of(self, id: EpisodeId) -> int:
        """Older groups go first, since their deadline comes first. An evaluation's episode has the priority of the
        newest group: it delays no earlier group, and later groups cannot starve it."""
        self._newest_group = max(self._newest_group, id.group)
        return self._newest_group if id.group == EVALUATION else id.group

    async def cancel(self, ids: Iterable[EpisodeId]) -> None:
        """Ends episodes with their requests and tool calls, and returns once they have ended. Results of episodes that
        ended before are forgotten; unknown ids are ignored."""
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
        """Records that the reader of the outbox has these entries."""
        entries = list(entries)
        self._ended_unreported.difference_update(
            entry.event.id for entry in entries if isinstance(entry.event, Failed | Cancelled)
        )
        self._tools.acknowledge([call for entry in entries for call in entry.calls])

    def _end(self, run: _Run | _Turn, task: asyncio.Task[Result]) -> None:
        id = run.order.id
        del self._tasks[id]
        self._count(self.under_way)
        if task.cancelled():
            self._ended_unreported.add(id)
            self._outbox.put(Entry(Cancelled(id=id), tuple(run.grading)))
            return
        match task.exception():
            case None:
                self.results[id] = task.result()
                self._outbox.put(Entry(Ended(id=id), tuple(run.grading)))
            case InfrastructureError() as error:
                self._fail(id, run.failed(type(error).__name__, str(error)))
            case defect if self._isolate:
                logger.error("an episode met a defect", exc_info=defect)
                self._fail(id, run.failed(DEFECT, "the server failed at this episode"))
            case defect:
                self._outbox.fail(defect)

    def _fail(self, id: EpisodeId, failed: Entry) -> None:
        self._ended_unreported.add(id)
        self._outbox.put(failed)

    async def _take_turn(self, order: TurnOrder) -> Said:
        if order.journal:
            return order.journal[-1]
        id = order.id
        async with self._policy.limits.within(order.limit_s):
            said = await self._policy.generate(
                Ask(prompt=order.prompt, turn=0, max_tokens=order.sampling.max_tokens or 1, constraint=None),
                sampling=order.sampling,
                stops=NO_STOPS,
                seed=derive(self._seed, id.task, id.group, id.sample, order.draw),
                priority=self._priority_of(id),
                on_tokens=None,
                stream=False,
                cache=EpisodeCache(order.salt, self._policy.syncs),
            )
        _check(said, "the turn", finite=True)
        self._outbox.put(Entry(Advanced(id=id, delta=said)))
        return said

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
            # A slow policy is a result of the evaluation, not a failure.
            run.episode.cut_off()
        # A slow grader is not, so grading has a limit of its own.
        async with limits.within(order.agent.limits.max_seconds):
            return await self._result_of(run)

    async def _converse(self, run: _Run) -> None:
        """Plays turns and tool calls until the episode has a status."""
        episode = run.episode
        while episode.status is None:
            if episode.pending is None:
                episode.take_turn(await self._turn(run, episode.ask()))
                self._outbox.put(Entry(Advanced(id=run.order.id, delta=episode.latest)))
            else:
                id = CallId(run.order.id, episode.turns)
                episode.observe(episode.notice or await self._call(run, id, episode.pending))
                self._outbox.put(Entry(Advanced(id=run.order.id, delta=episode.latest), (id,)))

    async def _result_of(self, run: _Run) -> Result:
        """The trajectory, graded if the order asks for it."""
        order, trajectory = run.order, run.episode.trajectory()
        if not order.graded:
            return trajectory
        budget = order.agent.limits.max_tokens - trajectory.prompt_length
        use_tool = partial(self._call_of_grader, run)
        return await score(trajectory, order.task, self._reward, budget=budget, use_tool=use_tool)

    async def _turn(self, run: _Run, ask: Ask) -> Said:
        order = run.order
        id = order.id
        if order.begun is not None and not run.went_on:
            ask, run.went_on = replace(ask, begun=order.begun), True

        def on_tokens(token_ids: Tokens) -> None:
            self._outbox.put(Entry(Streamed(id=id, token_ids=token_ids)))

        said = await self._policy.generate(
            ask,
            sampling=order.sampling,
            stops=self._stops(order.task.profile),
            seed=derive(self._seed, id.task, id.group, id.sample, ask.turn),
            priority=run.priority,
            on_tokens=None if order.level is EventLevel.TURNS else on_tokens,
            stream=order.level is EventLevel.TOKENS,
            cache=run.cache,
        )
        _check(said, f"turn {ask.turn}", finite=order.graded)
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


def _check(said: Said, turn: str, *, finite: bool) -> None:
    """Raises EmptyCompletion for a turn without a token and, if log-probs have to be `finite`, NotFinite."""
    if not len(said.token_ids):
        raise EmptyCompletion(f"{turn} has no token")
    if finite and (wrong := int((~np.isfinite(said.logprobs)).sum())):
        raise NotFinite(f"{turn}: {wrong} of {len(said.logprobs)} log-probs of the engine are not finite")
