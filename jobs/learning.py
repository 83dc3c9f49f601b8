"""A learner group under Ray Train, run beside the driver's event loop, and the buffer between them."""

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import ray

from actors.buffer import Event, Finished, Plan, TrajectoryBuffer
from actors.learner_config import LearnerConfig
from actors.policy import ModelConfig
from actors.train_loop import LearnJob, learn
from cluster.resources import PlacementConfig
from coa.errors import UserError
from coa.types import Tokens


class Learning:
    """Use as `async with`. A run of the same name in the same folder goes on from its last checkpoint."""

    def __init__(
        self,
        name: str,
        *,
        checkpoints: Path,
        placement: PlacementConfig,
        model_dir: Path,
        model: ModelConfig,
        learner: LearnerConfig,
        steps: int,
        publish: bool,
        probe: tuple[Tokens, ...] = (),
        probe_tokens: int = 0,
        checkpoint_every: int,
        output: Path,
    ) -> None:
        self._name, self._checkpoints, self._placement = name, checkpoints, placement
        self.ranks = learner.ranks
        self._buffer: Any = ray.remote(TrajectoryBuffer).options(num_cpus=0, max_concurrency=1000).remote()
        self._job = LearnJob(
            model_dir=str(model_dir),
            model=model,
            learner=learner,
            steps=steps,
            buffer=self._buffer,
            publish=publish,
            probe=probe,
            probe_tokens=probe_tokens,
            checkpoint_every=checkpoint_every,
            output=str(output),
        )
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beside: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Learning":
        loop = asyncio.get_running_loop()

        def fit() -> None:
            error: BaseException | None = None
            try:
                self._trainer().fit()
            except BaseException as failure:  # handed to the event loop, which raises it
                error = failure
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._settle, error)

        # A daemon: an interrupted driver must not wait for the learners.
        threading.Thread(target=fit, name=f"learners-{self._name}", daemon=True).start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for task in self._beside:
            task.cancel()
        if kind is None:
            await self._buffer.release.remote()
            await self._ended
        ray.kill(self._buffer)

    def _settle(self, error: BaseException | None) -> None:
        if not self._ended.done():
            self._ended.set_result(None) if error is None else self._ended.set_exception(error)

    def beside(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Runs `work` next to the learners until it ends or they do; if it fails, `events` raises its error."""
        task = asyncio.ensure_future(work)
        self._beside.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._beside.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._settle(error)

        task.add_done_callback(done)
        return task

    def _trainer(self) -> Any:
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        gpus = self._placement.learner_gpus
        resources = {"CPU": self._placement.learner_cpus, "GPU": gpus}
        return TorchTrainer(
            learn,
            train_loop_config={"job": self._job},
            torch_config=TorchConfig(backend="nccl" if gpus else "gloo"),
            scaling_config=ScalingConfig(
                num_workers=self.ranks,
                use_gpu=bool(gpus),
                resources_per_worker={name: amount for name, amount in resources.items() if amount},
            ),
            run_config=RunConfig(
                name=self._name,
                storage_path=str(self._checkpoints),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                failure_config=FailureConfig(max_failures=self._placement.learner_restarts),
            ),
        )

    async def events(self) -> AsyncIterator[Event]:
        """What the learners tell, up to Finished; raises what ended them otherwise."""
        while True:
            told = asyncio.ensure_future(self._next())
            await asyncio.wait({told, self._ended}, return_when=asyncio.FIRST_COMPLETED)
            if not told.done():
                told.cancel()
                raise_cause(self._ended.exception())
            event = told.result()
            yield event
            if isinstance(event, Finished):
                return

    async def _next(self) -> Event:
        return await self._buffer.next_event.remote()

    async def put(self, plan: Plan, epoch: int) -> bool:
        """Waits while another plan waits; False where the learners have restarted since `epoch`."""
        return await self._buffer.put.remote(plan, epoch)


def raise_cause(error: BaseException | None) -> None:
    """A person's mistake that a learner found is raised as that."""
    if error is None:
        raise RuntimeError("the learners ended before their last step")
    cause: BaseException | None = error
    while cause is not None:
        for found in (cause, *getattr(cause, "worker_failures", {}).values()):
            inner = getattr(found, "cause", found)
            if isinstance(inner, UserError):
                raise inner
        cause = cause.__cause__
    raise error
