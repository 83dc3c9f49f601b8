"""The loop of reinforcement on fake engines and fake learners: a run, and what came of it."""

import asyncio
import io
import json
import random
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from actors.learner.buffer import Finished, Started, Stepped
from actors.learner.step_report import StepReport
from actors.messages import EpisodeOrder
from cluster.health import PoolConfig
from cluster.pool import EnginePool
from coa.config import load
from coa.learning.accounts import Accounts, fold
from coa.learning.orders import Train
from coa.learning.window import WindowConfig
from coa.storage.jsonl import read_lines
from coa.types import Scored
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console, Stage
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.loop import Reinforcement
from tests.support.engines import FakeWorld
from tests.support.reports import a_report

GROUPS = 4


def make_run(folder: Path, *overrides: str, max_staleness: int = 0, steps: int = 6, spares: int = 0) -> RunDir:
    settings = [f"run_dir={folder}", f"rl.steps={steps}", "rl.group=3", "rl.keep_batches=false", *overrides]
    config = load(Recipe, find_recipe("tiny"), settings)
    window = WindowConfig(max_staleness=max_staleness, groups_per_batch=GROUPS, max_refills=100, spares=spares)
    run = RunDir(
        replace(config, rl=replace(config.rl, window=window, checkpoint_every=2)), Console(io.StringIO(), io.StringIO())
    )
    run.prepare()
    return run


class Remembering(EnginePool):
    """Knows which episode every sequence of tokens is of."""

    played: dict[bytes, EpisodeOrder]

    async def play(self, order: EpisodeOrder) -> Scored:
        scored = await super().play(order)
        self.played[scored.trajectory.token_ids.tobytes()] = order
        return scored


WEIGHTS: Any = "weights"


@dataclass
class FakeLearners:
    """Take two seconds a step; die where they are told to, and go on from their last checkpoint."""

    steps: int
    checkpoint_every: int
    dies_after: tuple[int, ...] = ()
    """The steps after which they die, once each."""
    replicas: int = 2
    trained: dict[int, Train] = field(default_factory=dict)
    """By the version it was trained at; what a restart takes back is not in it."""
    events: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    epoch: int = 0
    saved: tuple[int, Any] = (0, 0)
    """Version and cursor of the last checkpoint; at first of a driver before this one."""
    _plans: dict[int, Train] = field(default_factory=dict)
    _asked: int = -1
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    _spawned: set["asyncio.Task[None]"] = field(default_factory=set)
    handed_out: Callable[[Train], None] = lambda plan: None
    """Sees each batch as it comes."""
    report: Callable[[int], StepReport] = lambda version: a_report()
    """What they measure in the step to a version."""
    shares_prefixes: bool = True
    failure: "asyncio.Future[None]" = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.ensure_future(work)
        self._spawned.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._spawned.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None and not self.failure.done():
                self.failure.set_exception(error)

        task.add_done_callback(done)
        return task

    async def put(self, plan: Train, epoch: int) -> bool:
        self.handed_out(plan)
        async with self._changed:
            await self._changed.wait_for(lambda: epoch != self.epoch or plan.version <= self._asked + 1)
            if epoch != self.epoch:
                return False
            self._plans[plan.version] = plan
            self._changed.notify_all()
            return True

    async def learn(self) -> None:
        version, cursor = self.saved
        deaths = deque(self.dies_after)
        while True:
            async with self._changed:
                self.epoch, self._asked = self.epoch + 1, version - 1
                self._plans.clear()
                self._changed.notify_all()
            self.trained = {old: plan for old, plan in self.trained.items() if old < version}
            await self.events.put(
                Started(
                    version=version,
                    cursor=cursor,
                    weights=WEIGHTS,
                    probes=(),
                    parity="alike",
                    shares_prefixes=self.shares_prefixes,
                    epoch=self.epoch,
                )
            )
            self.saved = saved = version, cursor
            while version < self.steps:
                async with self._changed:
                    self._asked = version
                    self._changed.notify_all()
                    await self._changed.wait_for(lambda version=version: version in self._plans)
                    plan = self._plans[version]
                await asyncio.sleep(2.0)
                self.trained[version] = plan
                version += 1
                report = self.report(version)
                event = Stepped(
                    version=version, report=report, began=0.0, ended=1.0, waited=0.0, weights=WEIGHTS, probes=()
                )
                await self.events.put(event)
                if version % self.checkpoint_every == 0:
                    # What JSON makes of it, as in a checkpoint.
                    self.saved = saved = version, json.loads(json.dumps(plan.cursor))
                if deaths and version >= deaths[0]:
                    deaths.popleft()
                    await asyncio.sleep(1.0)
                    break
            else:
                return await self.events.put(Finished(version=version))
            version, cursor = saved


def accounts_of(run: RunDir) -> Accounts:
    return fold(read_lines(run.folder / "ledger.jsonl"))


@dataclass
class Played:
    batches: list[list[tuple[str, int, bytes]]]
    """(task, sample, tokens) of what was trained, sorted, batch by batch."""
    groups: list[list[int]]
    book: Any
    orders: list[EpisodeOrder]
    learners: FakeLearners
    result: dict[str, Any]


async def reinforce(
    run: RunDir,
    world: FakeWorld,
    *,
    kills: float = 0.0,
    pool_class: type[Remembering] = Remembering,
    scorer: Any = None,
    **learners_do: Any,
) -> Played:
    """kills: engines a second. scorer: a teacher, or None. learners_do: fields of FakeLearners."""
    config = run.config.rl
    pool = pool_class(world.launch, PoolConfig(deaths=1000), run.config.agent, places=256, patience_s=60.0)
    pool.played = {}
    for _ in range(2):
        pool.add()
    learners = FakeLearners(config.steps, config.checkpoint_every, **learners_do)
    loop = Reinforcement(run, pool, learners, Stage("rl", None), scorer, put=lambda share: share)

    async def kill() -> None:
        dice = random.Random(7)
        while kills:
            await asyncio.sleep(dice.expovariate(kills))
            if world.alive:
                dice.choice(world.alive).die()

    async def follow() -> None:
        while True:
            event = await learners.events.get()
            match event:
                case Started():
                    await loop.start(event)
                case Stepped():
                    await loop.stepped(event)
                case Finished():
                    return await loop.caught_up(event)

    working = [asyncio.ensure_future(one) for one in (learners.learn(), follow(), kill())]
    try:
        await pool.ready()
        await asyncio.wait({working[1], learners.failure}, return_when=asyncio.FIRST_COMPLETED)
        for one in (working[1], learners.failure):
            if one.done():
                one.result()
        result = await loop.result()
        loop.ledger.finish(config.steps)
    finally:
        for one in (*working, *learners._spawned):
            one.cancel()
        loop.close()
        await pool.stop()
    return _played(pool, learners, loop.stats, result)


def _played(pool: Remembering, learners: FakeLearners, book: Any, result: dict[str, Any]) -> Played:
    tokens = [
        [sample.token_ids.tobytes() for [share] in plan.shares for sample in share]
        for _, plan in sorted(learners.trained.items())
    ]
    orders = [[pool.played[said] for said in batch] for batch in tokens]
    batches = [
        sorted((order.task.id, order.id.sample, said) for order, said in zip(*both, strict=True))
        for both in zip(orders, tokens, strict=True)
    ]
    groups = [sorted({order.id.group for order in batch}) for batch in orders]
    return Played(batches, groups, book, list(pool.played.values()), learners, result)
