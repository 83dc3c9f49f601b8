"""Reinforcement with engines that come and go on a cluster with an autoscaler, as a driver of its own.

    python -m tests.support.elastic ADDRESS FOLDER come_and_go | alone | struck

Engines are actors that obey `actors.messages` without vLLM; learners take two seconds a step, and episodes are long.
Prints what it saw as JSON.

    come_and_go   1 to 3 engines, one of which is drained with its node; then episodes are short
    alone         one engine, all along
    struck        1 to 3 engines; one of three loses its node without notice every STRUCK_EVERY_S
"""

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import ray

from actors.learner.buffer import Finished, Started, Stepped
from actors.messages import EpisodeId, EpisodeOrder, EventBatch, Publication, Result, SyncReport
from actors.rollout.clocks import BusyReport
from actors.tools.dispatcher import ToolDispatcher
from actors.tools.executor import ExecutorConfig
from actors.tools.remote import ExecutorActor, ToolClient
from cluster.engine_actor import launcher
from cluster.notices import MARGIN_S, heed
from cluster.pool import EnginePool
from cluster.resources import PlacementConfig, on_driver_node
from coa.learning.scaling import EngineScaling
from coa.reporting.metrics import read_metrics
from coa.tools.base import Tool, ToolCall
from coa.tools.client import Executor, ToolCaller
from coa.types import Scored, Tokens
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.elastic import elastic_engines
from jobs.stages.reinforcement.loop import Reinforcement
from tests.support.engines import FakeEngine, FakeTools, FakeWorld, observed
from tests.support.rl_loop import FakeLearners, accounts_of, make_run

SCALING = EngineScaling(look_back_s=5.0, cooldown_s=10.0, handover_s=5.0)
PLACES, STEPS, LEARNING_S = 8, 400, 2.0
ALONE_STEPS = 6
"""Of an engine alone; then the run is cut off."""
REST_S = 200.0
"""Within which one engine is left where episodes are short."""
STRUCK_EVERY_S, STRIKES = 60.0, 2
LONG, SHORT = 24, 0
"""Tool calls of an episode."""
TOOL_S = 0.15
NOTICE_S = MARGIN_S
"""So short that the episodes of an engine that leaves continue elsewhere at once."""


class NotedTool:
    """A tool that answers within TOOL_S, and counts how often each call ran."""

    def __init__(self) -> None:
        self._runs: Counter[str] = Counter()

    def key(self, call: ToolCall) -> str | None:
        return None

    async def __call__(self, call: ToolCall) -> str:
        self._runs[call.argument] += 1
        await asyncio.sleep(TOOL_S * random.random())
        return "done"

    def counts(self) -> Mapping[str, int]:
        return {"ids": len(self._runs), "runs": self._runs.total()}


def noted_tools() -> Mapping[str, Tool]:
    return {"t": NotedTool()}


def start_tools() -> ToolClient:
    """What all engines call tools through, on the driver's node."""
    config = ExecutorConfig(concurrency=10_000, kept_results=1_000_000)
    make: Any = ray.remote(ToolDispatcher).options(max_concurrency=10_000, **on_driver_node())
    launch = partial(ExecutorActor, noted_tools, config, on_driver_node())
    return ToolClient(make.remote(launch, config, 1, (1, 1)))


class SharedTools(FakeTools):
    """Calls by id, as a rollout engine makes them: an engine that takes over an episode sends its call again."""

    def __init__(self, tools: Executor, incarnation: str) -> None:
        super().__init__()
        self._caller = ToolCaller(tools, incarnation)

    async def call(self, episode: EpisodeId, turn: int) -> Tokens:
        await self._caller.call((episode, turn), ToolCall("t", f"{episode} {turn}"))
        return observed(episode, turn)


class StubEngine:
    """A FakeEngine in an actor, whose tools are those of all engines."""

    def __init__(self, *, incarnation: str, tools: Executor, length: Any) -> None:
        self._length, self._calls = length, LONG
        self._world = FakeWorld(
            tools=SharedTools(tools, incarnation),
            start_s=1.0,
            sync_s=0.1,
            token_s=0.005,
            calls_of=lambda episode: self._calls,
        )
        self._incarnation = incarnation
        self._engine: FakeEngine | None = None

    async def ready(self) -> int:
        self._engine = await self._world.launch(self._incarnation)
        return await self._engine.ready()

    @property
    def _one(self) -> FakeEngine:
        assert self._engine is not None
        return self._engine

    async def start(self, orders: Sequence[EpisodeOrder], heard: int) -> None:
        self._calls = await self._length.get.remote()
        await self._one.start(orders, heard)

    async def cancel(self, ids: Sequence[EpisodeId]) -> int:
        return await self._one.cancel(ids)

    async def events(self, after: int, wait_s: float) -> EventBatch:
        return await self._one.events(after, wait_s)

    async def take(self, ids: Sequence[EpisodeId]) -> tuple[Result, ...]:
        return tuple([await one for one in self._one.take(ids)])

    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None:
        await self._one.acknowledge(ids)

    async def busy(self) -> BusyReport:
        return await self._one.busy()

    async def sync(self, version: int, weights: Any, probes: Any) -> SyncReport:
        return await self._one.sync(Publication(version, weights, probes))


class Length:
    """Of episodes, for all engines."""

    def __init__(self) -> None:
        self._calls = LONG

    def get(self) -> int:
        return self._calls

    def shorten(self) -> None:
        self._calls = SHORT


def drain_node(node: str) -> None:
    """As a cloud's notice of preemption reaches Ray."""
    from ray import _raylet
    from ray.core.generated.autoscaler_pb2 import DrainNodeReason  # pyright: ignore[reportAttributeAccessIssue]

    reason = DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION")
    client = _raylet.GcsClient(address=ray.get_runtime_context().gcs_address)  # pyright: ignore[reportAttributeAccessIssue]
    accepted, why = client.drain_node(node, reason, "spot", int((time.time() + NOTICE_S) * 1000))
    assert accepted, why


def lose_node(node: str) -> None:
    """Kills Ray's own process there, on this machine, which takes its actors with it."""
    [raylet] = [one for one in psutil.process_iter(["cmdline"]) if f"--node_id={node}" in (one.info["cmdline"] or ())]
    raylet.kill()


def nodes() -> int:
    return sum(node["Alive"] for node in ray.nodes()) - 1


class Watched(EnginePool):
    """Counts what was played."""

    ended: Counter[EpisodeId]

    async def play(self, order: EpisodeOrder) -> Scored:
        scored = await super().play(order)
        self.ended[order.id] += 1
        return scored


@dataclass
class Seen:
    """A run as it goes."""

    pool: Watched
    length: Any
    log: Callable[[str], None]
    most: int = STEPS
    """Steps after which the run is cut off."""
    ends: list[float] = field(default_factory=list)
    """Of steps, in seconds."""
    found: dict[str, Any] = field(default_factory=lambda: {"nodes": []})

    async def until(self, so: Callable[[], bool], look_s: float = 1.0) -> None:
        while not so():
            self.found["nodes"].append(nodes())
            await asyncio.sleep(look_s)

    def waited_s(self, first: int) -> float:
        """Seconds that the learners waited, a step behind the first ones."""
        ends = self.ends[first:]
        return (ends[-1] - ends[0]) / (len(ends) - 1) - LEARNING_S


async def come_and_go(seen: Seen) -> None:
    pool = seen.pool
    await seen.until(lambda: pool.occupancy.serving >= 3)
    [(number, replica), *_] = pool._slots.replicas().items()
    node, began = replica.link.engine.node, time.monotonic()
    seen.log(f"draining {node}, on which engine {number} is")
    await asyncio.to_thread(drain_node, node)
    await seen.until(lambda: number not in pool.states and pool.occupancy.serving >= 3, 0.2)
    seen.found["drained_s"] = time.monotonic() - began
    seen.found["first"] = number
    seen.found["on"] = [one.link.engine.node != node for one in pool._slots.replicas().values()]
    await seen.length.shorten.remote()
    async with asyncio.timeout(REST_S):
        await seen.until(lambda: pool.size == 1)
    seen.most = len(seen.ends) + 2


async def alone(seen: Seen) -> None:
    seen.most = ALONE_STEPS
    await seen.until(lambda: len(seen.ends) == ALONE_STEPS)
    seen.found["waited_s"] = seen.waited_s(1)


async def struck(seen: Seen) -> None:
    await seen.until(lambda: seen.pool.occupancy.serving >= 3)
    first = len(seen.ends)
    for strike in range(STRIKES):
        replica = list(seen.pool._slots.replicas().values())[strike]
        seen.log(f"the node of an engine is lost: {replica.link.engine.node}")
        lose_node(replica.link.engine.node)
        again = time.monotonic() + STRUCK_EVERY_S
        await seen.until(lambda again=again: time.monotonic() >= again)
    seen.found["waited_s"] = seen.waited_s(first)
    seen.most = len(seen.ends)


DRIVES = {"come_and_go": come_and_go, "alone": alone, "struck": struck}


async def reinforce(run: RunDir, log: Callable[[str], None], drive: Callable[[Seen], Coroutine[Any, Any, None]]) -> Any:
    length: Any = ray.remote(Length).options(num_cpus=0).remote()
    tools = start_tools()
    await tools.mistake()
    launch = launcher(StubEngine, run.config.placement, tools, length=length)
    pool = Watched(launch, run.config.pool, run.config.agent, places=PLACES, patience_s=60.0, say=log)
    pool.ended = Counter()
    pool.add()
    heeding = asyncio.ensure_future(heed(pool, SCALING.handover_s, log))
    await pool.ready()
    learners = FakeLearners(STEPS, 2)
    loop = Reinforcement(
        run,
        pool,
        learners,
        Stage("rl", None),
        elastic=elastic_engines(pool, run.config, log),
        put=lambda share: share,
    )
    seen = Seen(pool, length, log)
    seen.found["start"] = pool.size

    async def follow() -> None:
        while len(seen.ends) < seen.most:
            match event := await learners.events.get():
                case Started():
                    await loop.start(event)
                case Stepped():
                    await loop.stepped(event)
                    seen.ends.append(time.monotonic())
                    log(f"step {event.version}: {pool.occupancy}, {nodes()} nodes")
                case Finished():
                    return

    driving = asyncio.ensure_future(drive(seen))
    working = [asyncio.ensure_future(one) for one in (follow(), learners.learn())]
    await asyncio.wait({working[0], learners.failure}, return_when=asyncio.FIRST_COMPLETED)
    await driving
    for one in (*working, *learners._spawned):
        one.cancel()
    with suppress(asyncio.CancelledError):
        await working[0]
    loop.close()
    await pool.stop()
    async with asyncio.timeout(90):
        await seen.until(lambda: nodes() == 0, 0.5)
    heeding.cancel()
    twice = sum(times > 1 for times in pool.ended.values())
    calls = dict((await tools.stats())["t"].own)
    return seen.found | {"restarts": pool.restarts, "moves": pool.moves, "twice": twice, "calls": calls}


def main(address: str, folder: Path, drive: str) -> None:
    def log(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} {text}", file=sys.stderr, flush=True)

    began = time.monotonic()
    ray.init(address, log_to_driver=False)
    run = make_run(folder, "engine.max_concurrent=4", "rl.group=4", max_staleness=1, steps=STEPS)
    placement = PlacementConfig(engines=1, max_engines=1 if drive == "alone" else 3, engine_cpus=1.0)
    config = replace(run.config, placement=placement, pool=replace(run.config.pool, scaling=SCALING))
    run = RunDir(config, run.console)
    found = asyncio.run(reinforce(run, log, DRIVES[drive]))
    accounts = accounts_of(run)
    found["faults"] = accounts.faults
    found["states"] = dict(Counter(map(accounts.state, accounts.attempts.values())))
    found["engines"] = [record["engines_wished"] for record in read_metrics(run.folder / "metrics.jsonl")]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
