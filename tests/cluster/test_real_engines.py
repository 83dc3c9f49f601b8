"""Real engines (vLLM) that are killed and stopped at random moments, and what becomes of their episodes."""

import asyncio
import os
import random
import signal
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from ray.exceptions import RayActorError

from actors.messages import Advanced, EpisodeId, EpisodeOrder, EventBatch
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.rollout.engine import RolloutEngine
from actors.tools.executor import ToolExecutor
from actors.tools.remote import ToolClient
from cluster.engine_actor import Engine, launcher
from cluster.health import PoolConfig, State
from cluster.pool import EnginePool
from cluster.resources import PlacementConfig
from coa.agent.episode import AgentConfig, Grammar, Limits
from coa.grading.rewards import RewardConfig
from coa.seeds import derive
from coa.tools.base import ToolCall
from coa.types import Scored, Task
from tests.support.tiny import make_model

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]

AGENT = AgentConfig(
    instructed=False,
    grammar=Grammar.enforce,
    limits=Limits(max_turns=6, max_turn_tokens=48, max_observation_tokens=32, max_tokens=384),
)
AT_ONCE = 16
KILLS = 5
REPLACED_S = 60.0


class NotingExecutor(ToolExecutor):
    """Counts how often each call is made, and how often it completes."""

    def __init__(self, make_tools: Callable[[], dict[str, Any]]) -> None:
        super().__init__(make_tools)
        self.made: Counter[Hashable] = Counter()
        self.completed: Counter[Hashable] = Counter()

    def _start(self, caller: str, id: Hashable, call: ToolCall) -> None:
        before = self._known.get(id)
        super()._start(caller, id, call)
        self.made[id] += self._known.get(id) is not before

    def _end(self, id: Hashable, known: Any) -> None:
        if self._known.get(id) is known and not known.task.cancelled():
            self.completed[id] += 1
        super()._end(id, known)

    def noted(self) -> tuple[Counter[Hashable], Counter[Hashable]]:
        return self.made, self.completed


class Slow:
    """A tool that takes a while, whose answer follows from the call."""

    def key(self, call: ToolCall) -> None:
        return None

    async def __call__(self, call: ToolCall) -> str:
        await asyncio.sleep(0.2 + derive(call.argument) % 100 / 100)
        return f"{derive(call.argument) % 1000} cups"


def make_tools() -> dict[str, Any]:
    return dict.fromkeys(("code", "web_search", "wiki_search", "crawl_page"), Slow())


class Watched:
    """An engine, with what the driver had heard of an episode when it started it."""

    def __init__(self, engine: Engine, heard: Counter[EpisodeId], started: list[tuple[EpisodeId, int, int]]) -> None:
        self._engine, self._heard, self._started = engine, heard, started
        self._seen = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def start(self, orders: Sequence[EpisodeOrder], heard: int) -> None:
        self._started += [(order.id, len(order.journal), self._heard[order.id]) for order in orders]
        await self._engine.start(orders, heard)

    async def events(self, after: int, wait_s: float) -> EventBatch:
        batch = await self._engine.events(after, wait_s)
        for event in batch.events[max(0, self._seen - batch.first) :]:
            self._heard[event.id] += isinstance(event, Advanced)
        self._seen = batch.first + len(batch.events)
        return batch


class Stage:
    """A pool of real engines, and an executor."""

    def __init__(self, model: Path, engines: int) -> None:
        make: Any = ray.remote(NotingExecutor).options(num_cpus=0, max_concurrency=10_000)
        self.executor = make.remote(make_tools)
        self.heard: Counter[EpisodeId] = Counter()
        self.started: list[tuple[EpisodeId, int, int]] = []
        self.said: list[str] = []
        launch = launcher(
            RolloutEngine,
            PlacementConfig(engine_cpus=0.5),
            ToolClient(self.executor),
            str(model),
            config=EngineConfig(max_concurrent=AT_ONCE),
            agent=AGENT,
            reward=RewardConfig(),
            seed=0,
        )

        async def watched(incarnation: str) -> Any:
            return Watched(await launch(incarnation), self.heard, self.started)

        self.pool = EnginePool(watched, PoolConfig(), AGENT, places=2 * AT_ONCE, patience_s=60.0, say=self.said.append)
        self.engines = engines

    async def __aenter__(self) -> "Stage":
        for _ in range(self.engines):
            self.pool.add()
        await self.settled()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.pool.stop()
        ray.kill(self.executor)

    async def settled(self) -> None:
        """Waits until every engine serves."""
        serving = [State.HEALTHY] * self.engines
        async with asyncio.timeout(300):
            await self.pool._changes.wait_for(lambda: list(self.pool.states.values()) == serving)

    async def pid(self, number: int) -> int:
        return await self.pool._slots.replicas()[number].link.engine.ready()

    async def core(self, number: int) -> int:
        """The process in which vLLM computes."""
        children = psutil.Process(await self.pid(number)).children(recursive=True)
        [core] = [one.pid for one in children if "EngineCore" in " ".join(one.cmdline())]
        return core

    async def kill_one(self, dice: random.Random, *, core: bool) -> None:
        """Kills the process of an engine that serves, or vLLM's. One that is found to be gone already is left to the
        pool, whose restarts then tell of it."""
        async with asyncio.timeout(300):
            while True:
                await self.pool.ready()
                alive = [number for number, state in self.pool.states.items() if state is State.HEALTHY]
                with suppress(ValueError, psutil.NoSuchProcess, ProcessLookupError, RayActorError):
                    os.kill(await (self.core if core else self.pid)(dice.choice(alive)), signal.SIGKILL)
                    return
                await asyncio.sleep(0.5)


def order_of(number: int) -> EpisodeOrder:
    task = Task(id=f"t{number}", question=f"Who is it {number} ?", answers=("x",), profile="multi", family="f")
    return EpisodeOrder(id=EpisodeId(task.id, number, 0), task=task, sampling=SamplingConfig(), agent=AGENT)


def tokens_of(played: dict[int, Scored]) -> dict[int, list[int]]:
    return {number: one.trajectory.token_ids.tolist() for number, one in played.items()}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("model"))


def test_kills_lose_no_finished_turn_and_complete_no_tool_call_twice(model: Path) -> None:
    """Five SIGKILLs at random moments, of engines' actors and of vLLM's own process."""

    async def go() -> None:
        dice = random.Random(0)
        played: dict[int, Scored] = {}
        kills = 0
        async with Stage(model, engines=3) as stage:

            async def play(number: int) -> None:
                while kills < KILLS:
                    played[number] = await stage.pool.play(order_of(number))
                    number += AT_ONCE

            playing = [asyncio.ensure_future(play(number)) for number in range(AT_ONCE)]
            for kill in range(KILLS):
                await asyncio.sleep(dice.uniform(1, 5))
                await stage.pool.ready()
                alive = [number for number, state in stage.pool.states.items() if state is State.HEALTHY]
                number = dice.choice(alive)
                os.kill(await (stage.core if kill % 2 else stage.pid)(number), signal.SIGKILL)
                kills += 1
            await asyncio.gather(*playing)
            assert stage.pool.restarts == KILLS
            assert stage.pool.moves > 0
            made, completed = await stage.executor.noted.remote()
            assert set(completed.values()) == {1}
            assert set(made.values()) == {1}, "the executor lived on: calls under way were joined"
            assert all(journal == heard for _, journal, heard in stage.started), "what was heard is not played again"
            assert any(journal for _, journal, _ in stage.started)
            before = tokens_of(played)
            again = {number: await stage.pool.play(replay(number)) for number in list(played)[:64]}
        assert tokens_of(again) == {number: before[number] for number in again}

    asyncio.run(go())


def test_vllms_own_process_ends_with_an_actor_that_is_killed(model: Path) -> None:
    async def go() -> None:
        async with Stage(model, engines=1) as stage:
            core = psutil.Process(await stage.core(0))
            os.kill(await stage.pid(0), signal.SIGKILL)
            _, left = await asyncio.to_thread(psutil.wait_procs, [core], 5.0)
            assert all(one.status() == psutil.STATUS_ZOMBIE for one in left)

    asyncio.run(go())


def replay(number: int) -> EpisodeOrder:
    """The same episode with calls of its own: its seeds are those of the first time."""
    order = order_of(number)
    return replace(order, id=replace(order.id, serial=1))


@pytest.mark.parametrize("what", ["core", "actor"])
def test_a_stopped_process_is_named_and_replaced_within_a_minute_and_refused_when_it_wakes(
    model: Path, what: str
) -> None:
    async def go() -> None:
        async with Stage(model, engines=2) as stage:
            playing = [asyncio.ensure_future(stage.pool.play(order_of(number))) for number in range(AT_ONCE)]
            await asyncio.sleep(1.0)
            loop = asyncio.get_running_loop()
            stopped = await (stage.core if what == "core" else stage.pid)(0)
            replica = stage.pool._slots.replicas()[0]
            os.kill(stopped, signal.SIGSTOP)
            began = loop.time()
            await stage.pool._changes.wait_for(lambda: stage.said)
            named = loop.time() - began
            with suppress(ProcessLookupError):
                os.kill(stopped, signal.SIGCONT)
            await stage.settled()
            replaced = loop.time() - began
            print(f"{what}: named after {named:.1f} s, replaced after {replaced:.1f} s: {stage.said}")
            assert stage.said[0].startswith("rollout engine 0 died: ")
            assert replaced < REPLACED_S
            assert stage.pool._slots.replicas()[0] is not replica
            late = [("late", ToolCall("code", "1"))]
            assert await stage.executor.start.remote(replica.link.engine.incarnation, late) == "", "it is refused"
            assert len(await asyncio.gather(*playing)) == AT_ONCE
            _, completed = await stage.executor.noted.remote()
            assert set(completed.values()) == {1}

    asyncio.run(go())
