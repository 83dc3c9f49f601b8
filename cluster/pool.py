"""The rollout engines of a run: each in a placement group of its own, so that replicas can come and go.

An engine that dies is restarted by Ray with the weights of its start: it is given nothing to do until it has been
brought up to the newest version and has passed the probe.
"""

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.buffer import Probe
from actors.engine import BusyReport, EngineConfig, RolloutEngine, SamplingConfig, SyncReport
from cluster.resources import PlacementConfig
from coa.errors import InfrastructureError, ToolDown
from coa.rewards import RewardConfig
from coa.rollout import AgentConfig, EpisodeRecord, Failed, GroupRecord
from coa.staleness import Ticket
from coa.tools.base import ToolCall
from coa.types import Floats, Task, Tokens


@dataclass(frozen=True, slots=True)
class Live:
    """The newest weights that were published."""

    version: int
    weights: Any
    probes: tuple[Probe, ...]


@dataclass
class _Replica:
    handle: Any
    group: PlacementGroup
    under_way: int = 0
    serving: bool = True


async def _call_executor(executor: Any, calls: Sequence[ToolCall]) -> Sequence[str | InfrastructureError]:
    try:
        return await executor.call_many.remote(list(calls))
    except RayError as error:
        down = ToolDown(f"the tool executor is gone: {type(error).__name__}")
        return [down] * len(calls)


class EnginePool:
    """Gives each group to the engine with the least to do, and keeps all engines at one version."""

    def __init__(self, replicas: list[_Replica]) -> None:
        self._replicas = replicas
        self._live: Live | None = None
        self._recoveries: set[asyncio.Task[None]] = set()
        self._serving = asyncio.Condition()
        self.restarts = 0

    @classmethod
    async def start(
        cls,
        model_dir: str,
        *,
        placement: PlacementConfig,
        engine: EngineConfig,
        agent: AgentConfig,
        reward: RewardConfig,
        executors: Sequence[Any],
        seed: int,
    ) -> "EnginePool":
        replicas = []
        for index in range(placement.engines):
            bundle = {"CPU": placement.engine_cpus, "GPU": placement.engine_gpus}
            group = placement_group([{name: amount for name, amount in bundle.items() if amount}])
            handle = (
                ray.remote(RolloutEngine)
                .options(
                    num_cpus=placement.engine_cpus,
                    num_gpus=placement.engine_gpus,
                    max_concurrency=10_000,
                    max_restarts=-1,
                    scheduling_strategy=PlacementGroupSchedulingStrategy(group),
                )
                .remote(
                    model_dir,
                    config=engine,
                    agent=agent,
                    reward=reward,
                    call_many=functools.partial(_call_executor, executors[index % len(executors)]),
                    seed=seed,
                )
            )
            replicas.append(_Replica(handle, group))
        pool = cls(replicas)
        await asyncio.gather(*(replica.handle.ready.remote() for replica in replicas))
        return pool

    def stop(self) -> None:
        for recovery in self._recoveries:
            recovery.cancel()
        for replica in self._replicas:
            ray.kill(replica.handle)
            remove_placement_group(replica.group)

    async def play(
        self, task: Task, ticket: Ticket, size: int, sampling: SamplingConfig
    ) -> tuple[GroupRecord | Failed, Any]:
        """A group's record, and the reference of its samples."""
        async with _Turn(self) as replica:
            record, samples = replica.handle.play.options(num_returns=2).remote(task, ticket, size, sampling)
            try:
                return await record, samples
            except RayActorError as error:
                self._lost(replica)
                return Failed(group=ticket.group, where=type(error).__name__, why="the engine died"), samples

    async def evaluate(
        self, task: Task, samples: Sequence[int], sampling: SamplingConfig, *, tries: int = 5
    ) -> tuple[EpisodeRecord, ...]:
        """Episodes of one task, tried again after infrastructure failures; raises InfrastructureError in the end."""
        outcome: tuple[EpisodeRecord, ...] | Failed = ()
        for _ in range(tries):
            async with _Turn(self) as replica:
                try:
                    outcome = await replica.handle.evaluate.remote(task, samples, sampling)
                except RayActorError as error:
                    self._lost(replica)
                    outcome = Failed(group=-1, where=type(error).__name__, why="the engine died")
            if not isinstance(outcome, Failed):
                return outcome
        assert isinstance(outcome, Failed)
        raise InfrastructureError(f"{task.id}: {outcome.where}, {tries} times: {outcome.why}")

    async def logprobs(self, token_ids: Tokens) -> Floats:
        """Log-probs of all tokens but the first."""
        async with _Turn(self) as replica:
            return await replica.handle.logprobs.remote(token_ids)

    async def sync(self, version: int, weights: Any, probes: tuple[Probe, ...]) -> list[SyncReport]:
        """Brings every serving engine to `version`; raises SyncError where one is not the learner's afterwards."""
        self._live = Live(version, weights, probes)
        serving = [replica for replica in self._replicas if replica.serving]
        reports = []
        for replica, report in zip(
            serving,
            await asyncio.gather(
                *(replica.handle.sync.remote(version, weights, probes) for replica in serving), return_exceptions=True
            ),
            strict=True,
        ):
            if isinstance(report, RayActorError):
                self._lost(replica)
            elif isinstance(report, BaseException):
                raise report
            else:
                reports.append(report)
        return reports

    async def busy(self) -> list[BusyReport]:
        return list(await asyncio.gather(*(replica.handle.busy.remote() for replica in self._replicas)))

    def _lost(self, replica: _Replica) -> None:
        if replica.serving:
            replica.serving = False
            recovery = asyncio.ensure_future(self._recover(replica))
            self._recoveries.add(recovery)
            recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, replica: _Replica) -> None:
        """Ray restarts the actor; it serves again once it runs the newest weights."""
        while True:
            live = self._live
            try:
                await replica.handle.ready.remote()
                if live is not None:
                    await replica.handle.sync.remote(live.version, live.weights, live.probes)
            except RayActorError:
                await asyncio.sleep(1)
                continue
            if live is self._live:
                break
        self.restarts += 1
        async with self._serving:
            replica.serving = True
            self._serving.notify_all()


class _Turn:
    """A piece of work at the engine that has the least to do."""

    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self._replica: _Replica | None = None

    async def __aenter__(self) -> _Replica:
        async with self._pool._serving:
            await self._pool._serving.wait_for(lambda: any(r.serving for r in self._pool._replicas))
            self._replica = min((r for r in self._pool._replicas if r.serving), key=lambda r: r.under_way)
            self._replica.under_way += 1
            return self._replica

    async def __aexit__(self, *_: object) -> None:
        assert self._replica is not None
        self._replica.under_way -= 1
