"""A learner group under Ray Train, run beside the driver's event loop, and the buffer between them."""

import asyncio
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayActorError

from actors.learner.buffer import Event, Finished, Started, Stepped, TrajectoryBuffer
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.loop import LearnJob, learn
from actors.weights.transport import WeightsConfig
from cluster.resources import PlacementConfig, Role, beside_driver
from cluster.weights import RayShelf, close_directory, start_directory
from coa.errors import DiskFull, InfrastructureError, OutOfMemory, ReadOnlyDisk, UserError
from coa.learning.orders import Train
from coa.storage.checkpoints import mend
from coa.storage.files import of_disk
from coa.types import Tokens

logger = logging.getLogger(__name__)
WATCH_S = 15.0
"""Without an event of the learners for so long, it is asked whether a rank keeps the others waiting."""
STALLED_S = 120.0
"""A rank that is in its step for so long without getting further is named."""
ENDS_S = 10.0
"""For so long the thread that waits for learners is waited for, once they are ended."""
CONTROLLER_DIED = "the controller of Ray Train died"
AGAIN = "the same command resumes from the last checkpoint"
AGAIN_S = 0.5
"""Between two questions to a buffer that is starting again."""
T = TypeVar("T")


class Learning:
    """Use as `async with`. If the folder has checkpoints of a run of the same name, learners continue from the last
    one."""

    def __init__(
        self,
        name: str,
        *,
        checkpoints: Path,
        placement: PlacementConfig,
        model_dir: Path,
        model: ModelConfig,
        learner: LearnerConfig,
        objective: Objective,
        steps: int,
        publish: bool,
        probe: tuple[Tokens, ...] = (),
        probe_tokens: int = 0,
        probe_temperature: float = 1.0,
        checkpoint_every: int,
        output: Path,
        weights: WeightsConfig | None = None,
        checkpoint: Path | None = None,
        last: int | None = None,
        takes_turns: bool = False,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        """weights: how they are published, where `publish` says that they are. checkpoint: one of another job, to begin
        at. last: the version at which to end, before `steps`, which the schedule of learning rates follows.
        takes_turns: whether ranks leave their GPUs to engines while they wait. say: is told of ranks that hang."""
        self._say, self._limit_s = say, learner.collective_s
        self._name, self._checkpoints, self._placement = name, checkpoints, placement
        self.replicas = learner.replicas
        """Shares that a batch is dealt in."""
        buffer: Any = ray.remote(TrajectoryBuffer)
        self._buffer: Any = buffer.options(max_concurrency=1000, max_restarts=-1, **beside_driver()).remote(
            ranks=learner.ranks, steps=last or steps, publish=publish, checkpoint_every=checkpoint_every
        )
        self._directory: Any = start_directory() if publish else None
        self._job = LearnJob(
            model_dir=str(model_dir),
            model=model,
            learner=learner,
            objective=objective,
            steps=steps,
            buffer=self._buffer,
            publish=publish,
            shelf=RayShelf(self._directory) if publish else None,
            weights=weights or WeightsConfig(),
            takes_turns=takes_turns,
            probe=probe,
            probe_tokens=probe_tokens,
            probe_temperature=probe_temperature,
            checkpoint=checkpoint,
            output=str(output),
        )
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._controller: Any = None
        """Of Ray Train, once it is there."""
        self._over = False
        """Whether learners are ended before their end."""
        self._beside: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Learning":
        loop = asyncio.get_running_loop()

        def fit() -> None:
            error: BaseException | None = None
            try:
                self._fit()
            except BaseException as failure:  # handed to the event loop, which raises it
                error = failure
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._settle, error)

        # A daemon: an interrupted driver must not wait for the learners.
        self._thread = threading.Thread(target=fit, name=f"learners-{self._name}", daemon=True)
        self._thread.start()
        return self

    def _fit(self) -> None:
        """Runs the learners to their end. Where Ray Train's controller dies, its ranks die with it, and another one
        starts them again from the last checkpoint: as often as it may restart ranks itself."""
        restarts = self._placement.learner_restarts
        for restarted in itertools.count():
            mend(self._checkpoints / self._name)
            try:
                return self._trainer().fit()
            except ActorDiedError as error:  # a rank's death is a WorkerGroupError
                if self._over:
                    raise
                if 0 <= restarts <= restarted:
                    raise InfrastructureError(f"{CONTROLLER_DIED} {restarted + 1} times: {AGAIN}") from error
            logger.warning("%s: learners restart from their last checkpoint", CONTROLLER_DIED)

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for task in self._beside:
            task.cancel()
        if kind is None:
            await surely(self._buffer.release.remote)
            await self._ended
        else:
            await self._end()
        if self._directory is not None:
            await close_directory(self._directory)
        ray.kill(self._buffer)

    async def _end(self) -> None:
        """Ends the learners. The thread that waits for them is back before Ray is shut down, or it would be left in
        memory that is no more."""
        self._over = True
        if self._controller is not None:
            ray.kill(self._controller)
        await asyncio.to_thread(self._thread.join, ENDS_S)

    def _control(self, **arguments: Any) -> Any:
        """In place of Ray Train's own way to start its controller, which tells nobody of it."""
        from ray.train.v2._internal.constants import get_env_vars_to_propagate
        from ray.train.v2._internal.execution.controller import TrainController

        actor: Any = ray.remote(TrainController)
        environment = {"env_vars": get_env_vars_to_propagate()}
        self._controller = actor.options(runtime_env=environment, **beside_driver()).remote(**arguments)
        if self._over:
            ray.kill(self._controller)
        ray.get(self._controller.run.remote())
        return ray.get(self._controller.get_result.remote())

    def _settle(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        # Nobody is left to hear of an end that was asked for.
        self._ended.set_result(None) if error is None or self._over else self._ended.set_exception(error)

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
        trainer: Any = TorchTrainer(
            learn,
            train_loop_config={"job": self._job},
            torch_config=TorchConfig(backend="nccl" if gpus else "gloo", timeout_s=int(self._limit_s)),
            scaling_config=ScalingConfig(
                num_workers=self._job.learner.ranks,
                use_gpu=bool(gpus),
                resources_per_worker={name: amount for name, amount in resources.items() if amount},
                **self._placement.on(Role.learner),
            ),
            run_config=RunConfig(
                name=self._name,
                storage_path=str(self._checkpoints),
                checkpoint_config=CheckpointConfig(num_to_keep=2),
                failure_config=FailureConfig(max_failures=self._placement.learner_restarts),
            ),
        )
        trainer._initialize_and_run_controller = self._control
        return trainer

    async def events(self) -> AsyncIterator[Event]:
        """What the learners tell, up to Finished; raises what ended them otherwise. Who asks for the next has recorded
        the one before: no checkpoint is kept of a step that is not."""
        epoch = 0
        while True:
            found = asyncio.ensure_future(self._next())
            # Who is interrupted here ends the buffer: what is asked of it fails then, and nobody is left to hear it.
            found.add_done_callback(lambda asked: None if asked.cancelled() else asked.exception())
            try:
                await self._watched({found, self._ended})
                if not found.done():
                    raise_cause(self._ended.exception(), self._checkpoints)
                event = found.result()
            finally:
                found.cancel()
            yield event
            match event:
                case Started():
                    epoch = event.epoch
                case Stepped(version=version):
                    await surely(partial(self._buffer.recorded.remote, version, epoch))
                case Finished():
                    return

    async def _watched(self, either: set[asyncio.Future[Any]]) -> None:
        """Waits for one of them; tells once of ranks that keep the others waiting meanwhile."""
        told = ""
        while not (await asyncio.wait(either, timeout=WATCH_S, return_when=asyncio.FIRST_COMPLETED))[0]:
            with suppress(RayActorError, TimeoutError):  # the buffer starts again, or its end is raised elsewhere
                said = await asyncio.wait_for(self._buffer.stalled.remote(STALLED_S), WATCH_S)
                if said and said != told:
                    told = said
                    self._say(f"{said}; learners restart within learner.collective_s={self._limit_s:g} s")

    async def _next(self) -> Event:
        return await surely(self._buffer.next_event.remote)

    async def put(self, train: Train, epoch: int) -> bool:
        """Waits while another batch waits; False where the learners have restarted since `epoch`, or will, since the
        buffer has."""
        try:
            return await self._buffer.put.remote(train, epoch)
        except ActorUnavailableError:
            return False


async def surely(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of an actor that is started again where it dies, asked until there is one."""
    while True:
        try:
            return await ask()
        except ActorUnavailableError:
            await asyncio.sleep(AGAIN_S)


NO_MEMORY = "running low on memory"
"""What Ray says of processes that it has ended for that."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, those that it came from, and those of learners and of Ray Train's controller that it tells of."""
    yield error
    told = (getattr(error, name, None) for name in ("cause", "_base_exc", "controller_failure", "__cause__"))
    for inner in (*told, *getattr(error, "worker_failures", {}).values()):
        if isinstance(inner, BaseException) and inner is not error:
            yield from causes(inner)


def raise_cause(error: BaseException | None, folder: Path) -> None:
    """A person's mistake that a learner found is raised as that, and an end for want of memory or disk in one line.
    folder: where checkpoints are kept."""
    if error is None:
        raise RuntimeError("the learners ended before their last step")
    for inner in causes(error):
        if isinstance(inner, UserError | DiskFull | ReadOnlyDisk):
            raise inner
        if found := of_disk(folder, inner):
            raise found from error
    if said := next((line for line in str(error).splitlines() if NO_MEMORY in line), None):
        used = said.partition(" was ")[2] or said
        hint = "--dry-run shows what each part takes"
        raise OutOfMemory(f"Ray ended learners because memory ran out: {used}; {hint}") from error
    raise error
