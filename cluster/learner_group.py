"""A learner group under Ray Train, run in a thread beside the driver's event loop, and the buffer between them."""

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import ray
from ray.exceptions import ActorUnavailableError, RayActorError

from actors.handles import Handle, kill, start_actor, start_restartable
from actors.learner.buffer import Committed, Event, Finished, Started, Stepped, TrajectoryBuffer
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.loop import LearnJob, learn
from actors.weights.transport import WeightsConfig
from cluster.learners.attempts import abort, attempts, remove_left_groups
from cluster.learners.last_checkpoint import LastCheckpoint
from cluster.resources import PlacementConfig, Role, on_driver_node
from cluster.watch import Ask, ready, watched_services
from cluster.weights import RayWeightStore, close_directory, start_directory
from coa.concurrency import Work
from coa.errors import DiskFull, OutOfMemory, ReadOnlyDisk, UserError
from coa.learning.orders import Train, has_checkpoint
from coa.storage.checkpoints import CheckpointFolder, Mended, mend
from coa.storage.files import of_disk
from coa.storage.keeping import Keeping
from coa.types import Tokens

if TYPE_CHECKING:
    from ray.train.torch import TorchTrainer

logger = logging.getLogger(__name__)
WATCH_S = 15.0
"""Seconds without an event of the learners after which it is checked whether a rank keeps the others waiting."""
STALLED_S = 120.0
"""Seconds without progress after which a rank that is in a step is named."""
ENDS_S = 10.0
"""Maximum seconds to wait for the thread of Ray Train once the learners are killed."""
AGAIN_S = 0.5
"""Seconds between two calls of a buffer that is restarting."""
T = TypeVar("T")


class Learners(Protocol):
    """Learners as a stage uses them: it feeds them with batches, and runs its own work at the same time."""

    replicas: int

    def spawn(self, work: Work[None]) -> "asyncio.Task[None]": ...

    async def put(self, train: Train, epoch: int, /) -> bool: ...


class LearnerGroup:
    """Runs the learners within `async with`. If the folder has checkpoints of a run of the same name, learners continue
    from the last checkpoint. It may be entered again within its own `async with`, so that learners start before they
    are needed: they end with the inner one."""

    _thread: threading.Thread | None = None
    _closed = False

    def __init__(
        self,
        name: str,
        *,
        keeping: Keeping,
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
        output: Path,
        weights: WeightsConfig | None = None,
        checkpoint: CheckpointFolder | None = None,
        last: int | None = None,
        takes_turns: bool = False,
        copy: Callable[[], object] = lambda: None,
        say: Callable[[str], None] = logger.warning,
    ) -> None:
        """weights: how they are published, if `publish` is set. checkpoint: one of another job, to begin at. last:
        version at which to end, before `steps`, which the learning rate follows. takes_turns: whether ranks leave their
        GPUs to engines while they wait. copy: called in a thread once a step with a checkpoint is recorded, before the
        checkpoint is committed. say: takes a line about a damaged checkpoint, or a rank that hangs."""
        self._name, self._placement, self._say, self._limit_s = name, placement, say, learner.collective_s
        self._keeping, self._folder, self._copy = keeping, keeping.folder.below(name), copy
        self.replicas = learner.replicas
        """Shares that a batch is dealt in."""
        self._buffer = start_buffer(keeping, ranks=learner.ranks, steps=last or steps, publish=publish)
        self._directory = start_directory() if publish else None
        self._job = LearnJob(
            model_dir=str(model_dir),
            model=model,
            learner=learner,
            objective=objective,
            steps=steps,
            buffer=self._buffer,
            publish=publish,
            weight_store=None if self._directory is None else RayWeightStore(self._directory),
            weights=weights or WeightsConfig(),
            takes_turns=takes_turns,
            probe=probe,
            probe_tokens=probe_tokens,
            probe_temperature=probe_temperature,
            checkpoint=checkpoint,
            output=str(output),
            keeping=keeping,
        )
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._controller: Handle | None = None
        """Ray Train's controller actor, once it is started."""
        self._over = False
        """Whether the learners are being killed before their end."""
        self._spawned: set[asyncio.Task[None]] = set()
        self._watch, self._opened = watched_services(self._services(), say), ExitStack()
        self._has_checkpoint = partial(has_checkpoint, steps=last or steps, checkpoint_every=keeping.every)
        self._last = LastCheckpoint(keeping.config.grace_s, partial(surely, self._buffer.checkpoint.remote), say)

    def _services(self) -> dict[str, Ask]:
        directory = {} if self._directory is None else {"the directory of weights": ready(self._directory)}
        return {"the buffer of the learners": ready(self._buffer)} | directory

    async def __aenter__(self) -> "LearnerGroup":
        if self._thread is not None:
            return self
        loop = asyncio.get_running_loop()
        await self._watch.__aenter__()
        self._opened.enter_context(self._last.on_sigterm(self.spawn))

        def fit() -> None:
            error: BaseException | None = None
            try:
                attempts(
                    lambda: self._trainer().fit(),
                    self._between_attempts,
                    most_failures=self._placement.learner_restarts,
                    wanted=lambda: not self._over,
                    warn=partial(loop.call_soon_threadsafe, self._say),
                )
            except BaseException as failure:  # handed to the event loop, which raises it
                error = failure
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._settle, error)

        # A daemon: an interrupted driver must not wait for the learners.
        self._thread = threading.Thread(target=fit, name=f"learners-{self._name}", daemon=True)
        self._thread.start()
        return self

    def _between_attempts(self) -> Mended:
        """Mends the folder of the checkpoints; of ranks that are gone no sign of life is expected."""
        self._buffer.gone.remote()
        mended = mend(self._folder)
        self._job = replace(self._job, start=mended.start)
        return mended

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._closed:
            return
        self._closed = True
        try:
            await self._close(failed=kind is not None)
        finally:
            self._opened.__exit__(kind, error, trace)

    async def _close(self, *, failed: bool) -> None:
        await self._watch.__aexit__(None, None, None)
        for task in self._spawned:
            task.cancel()
        if failed:
            await self._end()
        else:
            await surely(self._buffer.release.remote)
            await self._ended
        if self._directory is not None:
            await close_directory(self._directory)
        kill(self._buffer)

    async def _end(self) -> None:
        """Ends the learners, and joins the thread that waits for them, which must not use Ray after its shutdown."""
        self._over = True
        if self._controller is not None:
            await asyncio.to_thread(abort, self._controller)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, ENDS_S)

    def _control(self, **arguments: object) -> object:
        """Replaces Ray Train's method that starts the controller, to get the controller's handle."""
        from ray.train.v2._internal.constants import get_env_vars_to_propagate
        from ray.train.v2._internal.execution.controller import TrainController

        remove_left_groups()
        options = {"runtime_env": {"env_vars": get_env_vars_to_propagate()}, **on_driver_node()}
        self._controller = controller = start_actor(TrainController, options, **arguments)
        if self._over:
            kill(controller)
        ray.get(controller.run.remote())
        return ray.get(controller.get_result.remote())

    def _settle(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        # After a requested end nothing awaits the future, so its error is dropped.
        self._ended.set_result(None) if error is None or self._over else self._ended.set_exception(error)

    def spawn(self, work: Work[None]) -> "asyncio.Task[None]":
        """Runs `work` beside the learners until either ends; if `work` fails, `events` raises its error."""
        task = asyncio.ensure_future(work)
        self._spawned.add(task)

        def done(task: "asyncio.Task[None]") -> None:
            self._spawned.discard(task)
            if not task.cancelled() and (error := task.exception()) is not None:
                self._settle(error)

        task.add_done_callback(done)
        return task

    def _trainer(self) -> "TorchTrainer":
        from ray.train import CheckpointConfig, FailureConfig, RunConfig, ScalingConfig
        from ray.train.torch import TorchConfig, TorchTrainer

        from cluster.learners.commits import Commits

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
                storage_path=self._keeping.folder.path,
                storage_filesystem=self._keeping.folder.filesystem,
                checkpoint_config=CheckpointConfig(num_to_keep=None),  # `Commits` removes older ones
                failure_config=FailureConfig(max_failures=0),  # `attempts` starts them again
                callbacks=[Commits(self._folder, self._keeping, self._buffer)],
            ),
        )
        trainer._initialize_and_run_controller = self._control
        return trainer

    async def events(self) -> AsyncIterator[Event]:
        """Events of the learners up to Finished; raises the error if they end otherwise. By requesting the next event
        the caller confirms that it has recorded the previous one; no checkpoint is kept of an unrecorded step."""
        epoch = 0
        while True:
            found: asyncio.Future[Event] = asyncio.ensure_future(surely(self._buffer.next_event.remote))
            # If this is interrupted, the buffer is killed and the request fails; retrieve its exception to avoid a
            # warning.
            found.add_done_callback(lambda asked: None if asked.cancelled() else asked.exception())
            try:
                await self._watched({found, self._ended})
                if not found.done():
                    raise_cause(self._ended.exception(), Path(self._folder.path))
                event = found.result()
            finally:
                found.cancel()
            yield event
            match event:
                case Started():
                    epoch = event.epoch
                    self._last.committed(event.version)
                case Committed(version=version):
                    self._last.committed(version)
                case Stepped(version=version):
                    if self._has_checkpoint(version):
                        await asyncio.to_thread(self._copy)
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
                    self._say(f"{said}; learners restart after collective_s={self._limit_s:g} s, or PyTorch's limit")

    async def put(self, train: Train, epoch: int) -> bool:
        """Puts a batch; waits while another batch is queued. Returns False if the learners have restarted since
        `epoch`, or will restart because the buffer has."""
        try:
            return await self._buffer.put.remote(train, epoch)
        except ActorUnavailableError:
            return False


def start_buffer(keeping: Keeping, *, ranks: int, steps: int, publish: bool) -> Handle:
    """The handle of a new TrajectoryBuffer. steps: the version at which the learners end."""
    return start_restartable(
        TrajectoryBuffer,
        {"max_concurrency": 1000, **on_driver_node()},
        ranks=ranks,
        steps=steps,
        publish=publish,
        checkpoint_every=keeping.every,
        export_every=keeping.config.export_every,
    )


async def surely(ask: Callable[[], Awaitable[T]]) -> T:
    """Retries a call of an actor that Ray restarts, until it answers."""
    while True:
        try:
            return await ask()
        except ActorUnavailableError:
            await asyncio.sleep(AGAIN_S)


NO_MEMORY = "running low on memory"
"""Part of Ray's message about processes killed for lack of memory."""


def causes(error: BaseException) -> Iterator[BaseException]:
    """The error, its causes, and the errors of learners and of Ray Train's controller that it contains."""
    yield error
    told = (getattr(error, name, None) for name in ("cause", "_base_exc", "controller_failure", "__cause__"))
    for inner in (*told, *getattr(error, "worker_failures", {}).values()):
        if isinstance(inner, BaseException) and inner is not error:
            yield from causes(inner)


def raise_cause(error: BaseException | None, folder: Path) -> None:
    """Raises the error that ended the learners: a UserError as such, lack of memory or disk space with a one-line
    message. folder: folder of the checkpoints."""
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
