"""Engines that obey `actors.messages`, without vLLM and Ray, and that can be killed, stopped and made to fail.

The policy is seeded: what it says in a turn follows from the episode's id, its turn and what it was shown, so that an
episode comes to the same tokens wherever it is played.
"""

import asyncio
import copy
import random
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import numpy as np
from ray.exceptions import ActorDiedError, OutOfMemoryError

from actors.messages import (
    Advanced,
    CacheStats,
    Cancelled,
    Ended,
    EpisodeId,
    EpisodeOrder,
    Event,
    EventBatch,
    Failed,
    Order,
    Probe,
    Publication,
    Result,
    SyncReport,
    TurnOrder,
)
from actors.rollout.clocks import BusyReport
from actors.rollout.config import SamplingConfig
from coa.agent.episode import AgentConfig
from coa.agent.journal import Delta, Observed, Said
from coa.errors import ToolDown, WeightsGone
from coa.seeds import derive
from coa.types import ENVIRONMENT, Floats, Scored, Status, Task, Tokens, Trajectory

T = TypeVar("T")
CallId = tuple[EpisodeId, int]
AGENT = AgentConfig()


def a_task(number: int = 0) -> Task:
    return Task(id=f"task-{number}", question="?", answers=("x",), profile="mhqa", family="fake")


def order_of(number: int = 0, *, group: int = 0, sample: int = 0, limit_s: float | None = None) -> EpisodeOrder:
    task = a_task(number)
    return EpisodeOrder(
        id=EpisodeId(task.id, group, sample), task=task, sampling=SamplingConfig(), agent=AGENT, limit_s=limit_s
    )


@dataclass
class FakeTools:
    """Executors that keep a call's result by its id, so that none completes twice. It follows from what seeds do."""

    seconds: float = 1.0
    failing: float = 0.0
    """Share of the tries that fail."""
    tries: int = 4
    """Of a call, by an engine."""
    down: Callable[[EpisodeId], bool] = lambda episode: False
    """Whose calls fail always."""
    started: Counter[CallId] = field(default_factory=Counter)
    completed: Counter[CallId] = field(default_factory=Counter)
    cut_off: Counter[CallId] = field(default_factory=Counter)
    """Calls that ended with the engine that made them."""
    _running: dict[CallId, "asyncio.Task[Tokens]"] = field(default_factory=dict)
    _dice: random.Random = field(default_factory=lambda: random.Random(0))

    async def call(self, episode: EpisodeId, turn: int) -> Tokens:
        name = (episode, turn)
        if name not in self._running:
            running = self._running[name] = asyncio.ensure_future(self._run(name))
            # Of a call whose engine has gone, nobody hears how it ended.
            running.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        try:
            return await asyncio.shield(self._running[name])
        except ToolDown:
            self._running.pop(name, None)
            raise
        except asyncio.CancelledError:
            # The engine died or cancelled the episode: half of the calls under way end with it.
            if not self._running[name].done() and self._dice.random() < 0.5:
                self._running.pop(name).cancel()
                self.cut_off[name] += 1
            raise

    async def _run(self, name: CallId) -> Tokens:
        self.started[name] += 1
        await asyncio.sleep(self.seconds * self._dice.random())
        if self._dice.random() < self.failing or self.down(name[0]):
            self.started[name] -= 1  # a try that failed: the same call is made again
            raise ToolDown("it is down")
        self.completed[name] += 1
        return observed(*name)


def observed(episode: EpisodeId, turn: int) -> Tokens:
    """The result of a call."""
    name = f"EpisodeId(task={episode.task!r}, group={episode.group}, sample={episode.sample}, serial=0)"
    return np.asarray([derive(name, turn) % 1000, 7], np.int32)


@dataclass
class FakeWorld:
    """What engines share, and what is done to them."""

    tools: FakeTools = field(default_factory=FakeTools)
    place_s: float = 0.0
    start_s: float = 5.0
    token_s: float = 0.1
    calls_of: Callable[[EpisodeId], int] = lambda episode: derive("calls", episode.task, episode.group) % 7
    solved: Callable[[EpisodeId], bool] = lambda episode: False
    """Whether an episode is right whatever it said."""
    signs: Callable[[], int] = lambda: 0
    """Of progress of the starts."""
    failing_starts: int = 0
    """That are still to fail."""
    sync_faults: "deque[Exception | None]" = field(default_factory=deque)
    """What the next syncs meet, one after another; None is nothing. WeightsGone comes after the update began."""
    always_at_sync: Exception | None = None
    sync_s: float = 0.5
    nodes: "deque[str]" = field(default_factory=deque)
    """Where the next engines come up, one after another; "" beyond them."""
    engines: "list[FakeEngine]" = field(default_factory=list)
    """All that were ever started."""
    delivered: set[tuple[EpisodeId, int]] = field(default_factory=set)
    """Turns that the driver has acknowledged."""

    async def launch(self, incarnation: str) -> "FakeEngine":
        await asyncio.sleep(self.place_s)
        engine = FakeEngine(self, incarnation)
        self.engines.append(engine)
        return engine

    def forget(self, episode: EpisodeId) -> None:
        """It has ended: if it is played again, that is another time."""
        self.delivered = {turn for turn in self.delivered if turn[0] != episode}

    @property
    def alive(self) -> "list[FakeEngine]":
        return [engine for engine in self.engines if not engine.killed.done()]


def publication(version: int, weights: Any = "weights", probes: tuple[Probe, ...] = ()) -> Publication:
    return Publication(version, weights, probes)


class FakeEngine:
    def __init__(self, world: FakeWorld, incarnation: str) -> None:
        self._world, self.incarnation = world, incarnation
        self.node = world.nodes.popleft() if world.nodes else ""
        self.killed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.released = False
        """Whether its place was given back."""
        self.version: int | None = None
        self.loaded: list[int] = []
        self.started: list[EpisodeOrder] = []
        self.starts = 0
        """Calls of `start`."""
        self.cancelled: list[EpisodeId] = []
        self.acknowledged: list[EpisodeId] = []
        self.sync_faults: deque[Exception] = deque()
        """What its own next syncs meet."""
        self.defect: BaseException | None = None
        """Of an episode."""
        self.retried = 0
        self.cache, self.kv_use, self.expected_s = CacheStats(), 0.0, 0.0
        self.asleep = False
        self.slept: list[int] = []
        """Episodes under way at each sleep."""
        self._core, self._actor, self._sampling = asyncio.Event(), asyncio.Event(), asyncio.Event()
        for one in (self._core, self._actor, self._sampling):
            one.set()
        self._events: list[Event] = []
        self._first = 0
        self._new = asyncio.Event()
        self._tokens = self._generating = 0
        self._episodes: dict[EpisodeId, asyncio.Task[None]] = {}
        self._results: dict[EpisodeId, Result] = {}

    # --- what is done to it ---------------------------------------------------------------------------------------

    def die(self, error: Exception | None = None) -> None:
        """As by SIGKILL, or by what raises `error` at every call."""
        if not self.killed.done():
            self.killed.set_result(error or ActorDiedError())
            for episode in self._episodes.values():
                episode.cancel()

    def stop_core(self) -> None:
        self._core.clear()

    def stop_actor(self) -> None:
        self._core.clear()
        self._actor.clear()

    def wake(self) -> None:
        self._core.set()
        self._actor.set()

    # --- the contract -----------------------------------------------------------------------------------------

    def kill(self) -> None:
        self.released = True
        self.die()

    async def ready(self) -> int:
        async def come_up() -> int:
            await asyncio.sleep(self._world.start_s)
            if self._world.failing_starts:
                self._world.failing_starts -= 1
                self.die()
                await asyncio.sleep(0.1)
            self.version = 0
            return 1

        return await self._call(come_up)

    async def signs(self) -> int:
        return self._world.signs()

    async def start(self, orders: Sequence[Order], heard: int) -> None:
        self.starts += 1

        async def begin() -> None:
            assert not self.asleep, "it has no memory to play in"
            for order in orders:
                if order.id not in self._episodes and order.id not in self._results:
                    if isinstance(order, TurnOrder):
                        work = self._take_turn(order)
                    else:
                        self.started.append(order)
                        work = self._play(order)
                    episode = self._episodes[order.id] = asyncio.ensure_future(work)
                    episode.add_done_callback(self._ended)

        await self._call(begin)

    async def cancel(self, ids: Sequence[EpisodeId]) -> int:
        async def end() -> int:
            for one in ids:
                self._results.pop(one, None)
                if (episode := self._episodes.pop(one, None)) is not None:
                    episode.cancel()
                    await asyncio.wait({episode})
                    self.cancelled.append(one)
                    self._world.forget(one)
                    self._emit(Cancelled(id=one))
            return self._first + len(self._events)

        return await self._call(end)

    async def events(self, after: int, wait_s: float) -> EventBatch:
        async def poll() -> EventBatch:
            for event in self._events[: after - self._first]:
                if isinstance(event, Advanced) and isinstance(event.delta, Said):
                    self._world.delivered.add((event.id, self._turn_of(event)))
            del self._events[: after - self._first]
            self._first = after
            if not self._events:
                self._new.clear()
                waiting = asyncio.ensure_future(self._new.wait())
                await asyncio.wait({waiting}, timeout=wait_s)
                waiting.cancel()
            if self.defect is not None:
                raise self.defect
            return EventBatch(
                incarnation=self.incarnation,
                first=self._first,
                events=tuple(self._events),
                tokens=self._tokens,
                generating=self._generating,
                paused=not self._sampling.is_set(),
                retried=self.retried,
                cache=self.cache,
                expected_s=self.expected_s,
                kv_use=self.kv_use,
            )

        return await self._call(poll)

    def take(self, ids: Sequence[EpisodeId]) -> Sequence[Awaitable[Result]]:
        async def one(episode: EpisodeId) -> Result:
            return self._results[episode]

        return [asyncio.ensure_future(self._call(partial(one, episode))) for episode in ids]

    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None:
        async def forget() -> None:
            for one in ids:
                self.acknowledged.append(one)
                self._world.forget(one)
                self._results.pop(one, None)

        await self._call(forget)

    async def logprobs(self, token_ids: Tokens) -> Floats:
        async def ask() -> Floats:
            return np.full(len(token_ids) - 1, -0.5, np.float32)

        return await self._call(ask)

    async def busy(self) -> BusyReport:
        async def report() -> BusyReport:
            return BusyReport(((0.0, 1.0),))

        return await self._call(report)

    async def sync(self, publication: Publication) -> SyncReport:
        version = publication.version

        async def load() -> SyncReport:
            world = self._world
            faults = self.sync_faults or world.sync_faults
            fault = copy.copy(faults.popleft() if faults else world.always_at_sync)
            if isinstance(fault, ActorDiedError | OutOfMemoryError):
                self.die(fault)
            if fault is not None and not isinstance(fault, WeightsGone):
                raise fault
            await self._core.wait()  # the core has to say that it has paused
            self.asleep = False
            self._sampling.clear()
            await asyncio.sleep(world.sync_s)
            await self._core.wait()  # it may stop while it is paused, too
            if fault is not None:
                raise fault
            self.version = version
            self.loaded.append(version)
            self._sampling.set()
            return SyncReport(version=version, logprob_diff=0.0, logprob_mean_diff=0.0, pause_s=world.sync_s)

        return await self._call(load)

    async def sleep(self) -> None:
        async def fall_asleep() -> None:
            self.asleep = True
            self.slept.append(sum(not episode.done() for episode in self._episodes.values()))

        await self._call(fall_asleep)

    # --- inside -------------------------------------------------------------------------------------------------

    async def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """What every call of an actor meets: it may be dead, die meanwhile, or stand still."""

        async def handled() -> T:
            await self._actor.wait()
            await asyncio.sleep(0.001)
            result = await work()
            await self._actor.wait()
            return result

        task = asyncio.ensure_future(handled())
        await asyncio.wait({task, self.killed}, return_when=asyncio.FIRST_COMPLETED)
        if self.killed.done():
            task.cancel()
            raise copy.copy(self.killed.result())
        return task.result()

    def _ended(self, episode: "asyncio.Task[None]") -> None:
        if not episode.cancelled() and (defect := episode.exception()) is not None:
            self.defect = defect
            self._new.set()

    def _emit(self, event: Event) -> None:
        self._events.append(event)
        self._new.set()

    @staticmethod
    def _turn_of(event: Advanced) -> int:
        assert isinstance(event.delta, Said)
        return int(event.delta.token_ids[0])

    async def _play(self, order: EpisodeOrder) -> None:
        journal: list[Delta] = list(order.journal)
        calls = self._world.calls_of(order.id)
        try:
            while True:
                turn = sum(isinstance(delta, Said) for delta in journal)
                if journal and isinstance(journal[-1], Said):
                    if turn > calls:
                        break
                    journal.append(Observed(token_ids=await self._use_tool(order.id, turn - 1)))
                else:
                    journal.append(await self._say(order, turn, journal))
                self._emit(Advanced(id=order.id, delta=journal[-1]))
        except ToolDown as error:
            tokens = sum(len(delta.token_ids) for delta in journal)
            self._episodes.pop(order.id)
            self._emit(Failed(id=order.id, where="ToolDown", why=str(error), tokens=tokens, tool_calls=turn))
            return
        self._results[order.id] = scored(order, journal, solved=self._world.solved(order.id))
        self._episodes.pop(order.id)
        self._emit(Ended(id=order.id))

    async def _take_turn(self, order: TurnOrder) -> None:
        said = order.journal[-1] if order.journal else await self._say(order, order.draw, ())
        if not order.journal:
            self._emit(Advanced(id=order.id, delta=said))
        self._results[order.id] = said
        self._episodes.pop(order.id)
        self._emit(Ended(id=order.id))

    async def _use_tool(self, episode: EpisodeId, turn: int) -> Tokens:
        for _ in range(self._world.tools.tries - 1):
            try:
                return await self._world.tools.call(episode, turn)
            except ToolDown:
                self.retried += 1
        return await self._world.tools.call(episode, turn)

    async def _say(self, order: Order, turn: int, journal: Sequence[Delta]) -> Said:
        """Its first token is the turn's number."""
        assert (order.id, turn) not in self._world.delivered, "a finished turn is not sampled again"
        shown = journal[-1].token_ids.tolist() if journal else []
        dice = random.Random(derive(order.id.task, order.id.group, order.id.sample, turn, *shown))
        token_ids = [turn, *(dice.randrange(1000) for _ in range(dice.randrange(5, 40)))]
        versions: list[tuple[int, int]] = []
        self._generating += 1
        try:
            for _ in token_ids:
                await asyncio.sleep(self._world.token_s)
                await self._sampling.wait()
                await self._core.wait()
                self._tokens += 1
                assert self.version is not None
                if versions and versions[-1][0] == self.version:
                    versions[-1] = (self.version, versions[-1][1] + 1)
                else:
                    versions.append((self.version, 1))
        finally:
            self._generating -= 1
        n = len(token_ids)
        return Said(
            token_ids=np.asarray(token_ids, np.int32),
            logprobs=np.full(n, -1, np.float32),
            versions=tuple(versions),
            ended=True,
        )


def scored(order: EpisodeOrder, journal: Sequence[Delta], *, solved: bool) -> Scored:
    token_ids, mask, versions = [np.array([1, 2], np.int32)], [False] * 2, [ENVIRONMENT] * 2
    for delta in journal:
        token_ids.append(delta.token_ids)
        mask += [isinstance(delta, Said)] * len(delta.token_ids)
        spans = delta.versions if isinstance(delta, Said) else ((ENVIRONMENT, len(delta.token_ids)),)
        versions += [version for version, n in spans for _ in range(n)]
    action_mask = np.asarray(mask)
    tokens = np.concatenate(token_ids)
    said = sum(isinstance(delta, Said) for delta in journal)
    reward = float(solved or derive(*tokens.tolist()) % 2)
    trajectory = Trajectory(
        task_id=order.task.id,
        sample=order.id.sample,
        token_ids=tokens,
        action_mask=action_mask,
        logprobs=np.where(action_mask, -1, 0).astype(np.float32),
        versions=np.asarray(versions, np.int32),
        prompt_length=2,
        turns=said,
        tool_calls=("web_search",) * (said - 1),
        status=Status.ANSWERED,
        answer="x",
        text="",
        transitions_hold=True,
        repairs=(),
    )
    return Scored(trajectory=trajectory, grade=reward, correct=bool(reward), well_formed=True, reward=reward)
