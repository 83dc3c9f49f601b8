"""The rollout engines of a run: each in a placement group of its own, so that replicas can come and go.

An engine that dies is restarted by Ray with the weights of its start: it is given nothing to do until it has been
brought up to the newest version and has passed the probe.
"""

import asyncio
import functools
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
from ray.exceptions import RayActorError, RayError, RayTaskError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.engine import BusyReport, EngineConfig, Probe, RolloutEngine, SamplingConfig, SyncReport
from cluster.resources import PlacementConfig
from coa.episode import AgentConfig
from coa.errors import InfrastructureError, ToolDown
from coa.rewards import RewardConfig
from coa.rollout import EpisodeRecord, FailedGroup, GroupRecord
from coa.staleness import Ticket
from coa.tools.base import ToolCall
from coa.types import Floats, Task, Tokens

T = TypeVar("T")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 60.0
"""Between attempts at what meets infrastructure failures."""


class EngineDied(InfrastructureError):
    """Its text is the type of what Ray said."""


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


async def call_executors(executors: Sequence[Any], calls: Sequence[ToolCall]) -> Sequence[str | InfrastructureError]:
    """What one of the executors answers; a defect in a tool (an exception that is none of ours) is raised as it is."""
    try:
        return await random.choice(executors).call_many.remote(list(calls))
    except RayTaskError:
        raise
    except RayError as error:
        down = ToolDown(f"the tool executor is gone: {type(error).__name__}")
        return [down] * len(calls)


class EnginePool:
    """Gives each group to the engine with the least to do, and keeps all engines at one version."""

    def __init__(self, replicas: list[_Replica], patience_s: float) -> None:
        self._replicas, self._patience_s = replicas, patience_s
        self._live: Live | None = None
        self._recoveries: set[asyncio.Task[None]] = set()
        self._serving = asyncio.Condition()
        self._broken: Exception | None = None
        """Why an engine could not be brought back; whoever wants one is told."""
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
        patience_s: float,
    ) -> "EnginePool":
        """`patience_s`: of pauses, in all, before an evaluation gives up."""
        replicas = []
        for index in range(placement.engines):
            its_executors = executors[index % len(executors) :: placement.engines]
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
                    call_many=functools.partial(call_executors, its_executors),
                    seed=seed,
                )
            )
            replicas.append(_Replica(handle, group))
        pool = cls(replicas, patience_s)
        await asyncio.gather(*(replica.handle.ready.remote() for replica in replicas))
        return pool

    def stop(self) -> None:
        for recovery in self._recoveries:
            recovery.cancel()
        for replica in self._replicas:
            ray.kill(replica.handle)
            remove_placement_group(replica.group)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[_Replica]:
        """The serving engine that has the least to do, with one more thing to do."""
        async with self._serving:
            await self._serving.wait_for(lambda: self._broken or any(r.serving for r in self._replicas))
            if self._broken:
                raise self._broken
            replica = min((r for r in self._replicas if r.serving), key=lambda r: r.under_way)
            replica.under_way += 1
        try:
            yield replica
        except RayActorError as error:
            self._lost(replica)
            raise EngineDied(type(error).__name__) from error
        finally:
            replica.under_way -= 1

    async def play(
        self, task: Task, ticket: Ticket, size: int, sampling: SamplingConfig
    ) -> tuple[GroupRecord | FailedGroup, Any]:
        """A group's record, and the reference of its samples."""
        try:
            async with self._turn() as replica:
                record, samples = replica.handle.play.options(num_returns=2).remote(task, ticket, size, sampling)
                try:
                    return await record, samples
                except asyncio.CancelledError:
                    ray.cancel(record)
                    raise
        except EngineDied as error:
            return FailedGroup(group=ticket.group, where=str(error), why="the engine died"), None

    async def evaluate(self, task: Task, samples: Sequence[int], sampling: SamplingConfig) -> tuple[EpisodeRecord, ...]:
        """Episodes of one task, tried again after infrastructure failures; raises InfrastructureError in the end."""

        async def attempt() -> tuple[EpisodeRecord, ...]:
            async with self._turn() as replica:
                outcome = await replica.handle.evaluate.remote(task, samples, sampling)
            if isinstance(outcome, FailedGroup):
                raise InfrastructureError(f"{task.id}: {outcome.where}: {outcome.why}")
            return outcome

        return await self._patiently(attempt)

    async def logprobs(self, token_ids: Tokens) -> Floats:
        """Log-probs of all tokens but the first; tried again like `evaluate`."""

        async def attempt() -> Floats:
            async with self._turn() as replica:
                return await replica.handle.logprobs.remote(token_ids)

        return await self._patiently(attempt)

    async def load(self, version: int, model: Path) -> None:
        """Brings every engine to a model on disk. The weights are this process's own from then on, so that an engine
        that has to be brought back can have them when the learners are gone."""
        await self.sync(version, ray.put(np.fromfile(model / "model.safetensors", np.uint8)), ())

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
        """Of the engines that answer; one that was restarted tells of its time since."""
        reports = await asyncio.gather(
            *(replica.handle.busy.remote() for replica in self._replicas), return_exceptions=True
        )
        return [report for report in reports if isinstance(report, BusyReport)]

    async def _patiently(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempts again after infrastructure failures, unless an engine is gone for good."""
        for pause_s in pauses(self._patience_s):
            try:
                return await attempt()
            except InfrastructureError:
                if self._broken:
                    raise
            await asyncio.sleep(pause_s)
        return await attempt()

    def _lost(self, replica: _Replica) -> None:
        if replica.serving:
            replica.serving = False
            recovery = asyncio.ensure_future(self._recover(replica))
            self._recoveries.add(recovery)
            recovery.add_done_callback(self._recoveries.discard)

    async def _recover(self, replica: _Replica) -> None:
        """Ray restarts the actor; it serves again once it runs the newest weights."""
        try:
            while not replica.serving:
                live = self._live
                await self._bring_up(replica, live)
                async with self._serving:
                    replica.serving = live is self._live
            self.restarts += 1
        except (RayError, InfrastructureError) as error:
            self._broken = error
        async with self._serving:
            self._serving.notify_all()

    @staticmethod
    async def _bring_up(replica: _Replica, live: Live | None) -> None:
        while True:
            try:
                await replica.handle.ready.remote()
                if live is not None:
                    await replica.handle.sync.remote(live.version, live.weights, live.probes)
                return
            except RayActorError as error:
                if error.actor_init_failed:
                    raise
                await asyncio.sleep(1)


def pauses(patience_s: float) -> Iterator[float]:
    """Seconds, twice as many each time up to the longest, that come to `patience_s`: 0.5, 1, 2 and 0.3 for 3.8."""
    pause_s = FIRST_PAUSE_S
    while patience_s > 0:
        yield min(pause_s, patience_s)
        patience_s -= pause_s
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
