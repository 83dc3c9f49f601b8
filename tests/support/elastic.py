"""Reinforcement with engines that come and go on a cluster with an autoscaler, as a driver of its own.

    python -m tests.support.elastic ADDRESS FOLDER

Engines are actors that obey `actors.messages` without vLLM; learners take two seconds a step. Episodes are long until
three engines serve and one of them has been drained with its node, and short from then on. Prints what it saw as JSON.
"""

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from actors.learner.buffer import Finished, Started, Stepped
from actors.messages import EpisodeId, EpisodeOrder, EventBatch, SyncReport
from actors.rollout.clocks import BusyReport
from cluster.engine_actor import launcher
from cluster.notices import heed
from cluster.pool import EnginePool
from cluster.resources import PlacementConfig
from coa.learning.accounts import TRAINED
from coa.learning.scaling import EngineScaling
from coa.reporting.metrics import read_metrics
from coa.types import Scored
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.elastic import elastic_engines
from jobs.stages.reinforcement.loop import Reinforcement
from tests.jobs.stages.test_reinforcement import FakeLearners, accounts_of, make_run
from tests.support.engines import FakeEngine, FakeTools, FakeWorld

SCALING = EngineScaling(look_back_s=10.0, cooldown_s=20.0, handover_s=5.0)
PLACES, STEPS, LAST_STEPS = 8, 200, 40
"""LAST_STEPS: with short episodes; then the run is cut off."""
LONG, SHORT = 24, 0
"""Tool calls of an episode."""
NOTICE_S = 15


class StubEngine:
    """A FakeEngine in an actor. Its tools answer within 300 ms."""

    def __init__(self, *, incarnation: str, executors: Sequence[Any], length: Any) -> None:
        self._length, self._calls = length, LONG
        self._world = FakeWorld(
            tools=FakeTools(seconds=0.3), start_s=1.0, sync_s=0.1, token_s=0.01, calls_of=lambda episode: self._calls
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

    async def take(self, ids: Sequence[EpisodeId]) -> tuple[Scored, ...]:
        return tuple([await one for one in self._one.take(ids)])

    async def acknowledge(self, ids: Sequence[EpisodeId]) -> None:
        await self._one.acknowledge(ids)

    async def busy(self) -> BusyReport:
        return await self._one.busy()

    async def sync(self, version: int, *weights: Any) -> SyncReport:
        return await self._one.sync(version, *weights)


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


def nodes() -> int:
    return sum(node["Alive"] for node in ray.nodes()) - 1


class Watched(EnginePool):
    """Counts what was played."""

    ended: Counter[EpisodeId]

    async def play(self, order: EpisodeOrder) -> Scored:
        scored = await super().play(order)
        self.ended[order.id] += 1
        return scored


async def reinforce(run: RunDir, log: Callable[[str], None]) -> dict[str, Any]:
    length: Any = ray.remote(Length).options(num_cpus=0).remote()
    launch = launcher(StubEngine, run.config.placement, [], length=length)
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
    found: dict[str, Any] = {"nodes": []}
    left = LAST_STEPS

    async def follow() -> None:
        nonlocal left
        while left:
            match event := await learners.events.get():
                case Started():
                    await loop.start(event)
                case Stepped():
                    await loop.stepped(event)
                    left -= "drained_s" in found
                    log(f"step {event.version}: {pool.occupancy}, {nodes()} nodes")
                case Finished():
                    return

    async def watch() -> None:
        while pool.occupancy.serving < 3:
            found["nodes"].append(nodes())
            await asyncio.sleep(1.0)
        [(number, replica), *_] = pool._slots.replicas().items()
        node, began = replica.link.engine.node, time.monotonic()
        log(f"draining {node}, on which engine {number} is")
        await asyncio.to_thread(drain_node, node)
        while number in pool.states or pool.occupancy.serving < 3:
            found["nodes"].append(nodes())
            await asyncio.sleep(0.2)
        found["drained_s"] = time.monotonic() - began
        found["first"] = number
        found["on"] = [one.link.engine.node != node for one in pool._slots.replicas().values()]
        await length.shorten.remote()

    working = [asyncio.ensure_future(one) for one in (follow(), learners.learn(), watch())]
    await asyncio.wait({working[0], learners.failure}, return_when=asyncio.FIRST_COMPLETED)
    for one in (*working, *learners._beside):
        one.cancel()
    for one in (working[0], working[2]):
        with suppress(asyncio.CancelledError):
            await one
    loop.close()
    async with asyncio.timeout(90):
        while found["nodes"][-1] > 1:
            await asyncio.sleep(0.5)
            found["nodes"].append(nodes())
    heeding.cancel()
    found |= {"size": pool.size, "restarts": pool.restarts, "moves": pool.moves}
    found["twice"] = sum(times > 1 for times in pool.ended.values())
    await pool.stop()
    return found


def main(address: str, folder: Path) -> None:
    def log(text: str) -> None:
        print(f"{time.monotonic() - began:6.1f} {text}", file=sys.stderr, flush=True)

    began = time.monotonic()
    ray.init(address, log_to_driver=False)
    run = make_run(folder, "engine.max_concurrent=4", "rl.group=4", max_staleness=1, steps=STEPS)
    placement = PlacementConfig(engines=1, max_engines=3, engine_cpus=1.0)
    config = replace(run.config, placement=placement, pool=replace(run.config.pool, scaling=SCALING))
    run = RunDir(config, run.console)
    found = asyncio.run(reinforce(run, log))
    accounts = accounts_of(run)
    found["faults"] = accounts.faults
    states = Counter(map(accounts.state, accounts.attempts.values()))
    found["states"] = dict(states)
    found["engines"] = [record["engines_wished"] for record in read_metrics(run.folder / "metrics.jsonl")]
    found["trained"] = states[TRAINED]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
