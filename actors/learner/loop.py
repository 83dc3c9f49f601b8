"""The loop of each learner rank under Ray Train, for SFT and RL alike: it executes orders one after another.

restore -> begin an epoch, publish -> Train | Publish | Checkpoint | Export ... -> Stop: write the model

All ranks execute the same sequence of orders (`coa.learning.orders`), so collectives match. Every wait has a timeout:
the buffer's answers, collectives (the process group's timeout) and files.
"""

import json
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist

from actors.handles import Handle
from actors.learner.buffer import Finished, Started, Stepped
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from actors.learner.learner import Learner
from actors.messages import Probe
from actors.weights.loader import own_node
from actors.weights.parts import ModelParts
from actors.weights.ranks import Ranks, from_first
from actors.weights.store import WeightStore
from actors.weights.transport import BUCKET_BYTES, Published, Sender, WeightsConfig
from actors.weights.transports import find_sender
from coa.learning.orders import Checkpoint, Export, Numbered, Order, Publish, Shares, Stop, Train, share_of
from coa.learning.samples import all_trained
from coa.learning.task_stream import Cursor
from coa.reporting.spans import steady
from coa.storage.checkpoints import PROGRESS, CheckpointFolder
from coa.storage.keeping import Keeping
from coa.time_accounts import LearnerState, TimeAccount
from coa.types import Sample, Tokens

PROBES = 2
"""Number of samples of each batch that engines are probed with after the step, besides the fixed probes."""
PROGRESS_S = 5.0
"""Seconds between two progress reports of a rank."""
ANSWER_S = 120.0
"""Maximum seconds for an answer of the buffer, and for the transfer of a batch's objects."""


@dataclass(frozen=True, kw_only=True)
class LearnJob:
    model_dir: str
    model: ModelConfig
    learner: LearnerConfig
    objective: Objective
    steps: int
    """Version at which the job ends."""
    buffer: Handle
    """Handle of the TrajectoryBuffer."""
    publish: bool
    """Whether weights are published after each step."""
    weight_store: WeightStore | None = None
    """Storage of the published weights; None if `publish` is False."""
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    takes_turns: bool = False
    """Whether an engine uses the rank's GPU while the rank waits for samples."""
    probe: tuple[Tokens, ...]
    """Token sequences that engines are probed with, shorter than their context; at least one if `publish` is set."""
    probe_tokens: int
    """Maximum number of tokens of a sample that is used as an additional probe; the rest is cut off."""
    probe_temperature: float = 1.0
    """Temperature of the probe log-probs; engines use 1."""
    checkpoint: CheckpointFolder | None = None
    """A checkpoint to begin at, where the job has none of its own."""
    start: int = 0
    """Number of this start of the job's learners, which tells its checkpoints from those of others."""
    output: str
    """Folder of the final model."""
    keeping: Keeping
    """Where exported models go."""


def learn(settings: Mapping[str, LearnJob]) -> None:
    """Ray Train's entry point: `settings["job"]` is a LearnJob."""
    Rank(settings["job"]).run()


class Rank:
    """One rank: its learner and its progress."""

    def __init__(self, job: LearnJob) -> None:
        from actors.learner.checkpoint import Writer

        self._account = TimeAccount(LearnerState.GONE, time.monotonic())
        self._waited = 0.0
        """Seconds for which the rank waited for batches, up to the previous step."""
        self._job, self._rank = job, dist.get_rank()
        self._learner = Learner(Path(job.model_dir), job.model, job.learner, steps=job.steps, objective=job.objective)
        self._version, self._cursor = restore(self._learner, job.checkpoint)
        self._writer = Writer(job.start)
        self._epoch = 0
        self._number = 0
        """Number of the next order."""
        self._step: Stepped | None = None
        """Event that is sent to the driver once the weights are published."""
        self._fresh: tuple[Tokens, ...] = ()
        """Sequences of the last batch that engines are probed with."""
        self._sender: Sender | None = None
        self._parts: ModelParts | None = None
        if job.publish:
            self._prepare_publishing()

    def run(self) -> None:
        self._enter(LearnerState.PUBLISHING)
        self._begin()
        threading.Thread(target=self._tell_progress, name="progress", daemon=True).start()
        while not isinstance(order := self._next(), Stop):
            self._do(order)
        self._end()

    def _enter(self, state: LearnerState) -> None:
        self._account.enter(state, time.monotonic())

    def _seconds_by_state(self) -> dict[str, float]:
        """Seconds by state, with plain string keys, since they are sent to another process."""
        return {str(state): seconds for state, seconds in self._account.seconds(time.monotonic()).items()}

    def _do(self, order: Order) -> None:
        match order:
            case Train():
                self._train(order)
            case Publish():
                self._publish()
            case Checkpoint():
                self._enter(LearnerState.SAVING)
                state = json.dumps({"version": self._version, "cursor": self._cursor})
                version, first = self._version, self._rank == 0
                recorded = partial(self._until_recorded, version) if first else lambda: None
                self._writer.write(self._learner, version, state if first else None, recorded)
            case Export():
                self._enter(LearnerState.SAVING)
                self._learner.save_model(self._job.keeping.export(self._version), self._job.keeping.beside)
            case Stop():
                pass

    # --- the row of orders --------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """Begins a new epoch and reports its start to the driver."""
        self._epoch = from_first(self._ask("begin", self._version) if self._rank == 0 else 0)
        weights, probes = self._snapshot()
        if self._rank == 0:
            started = Started(
                version=self._version,
                cursor=self._cursor,
                weights=weights,
                probes=probes,
                epoch=self._epoch,
                parity=str(self._learner.parity),
                shares_prefixes=self._learner.packing.share_prefixes,
                spent=self._seconds_by_state(),
            )
            self._ask("emit", started, self._epoch)

    def _next(self) -> Order:
        """The next order. The driver may take any time for it; each single poll has a timeout."""
        self._enter(LearnerState.SAMPLES)
        while True:
            found: Numbered | None = self._ask("next_order", self._rank, self._epoch, self._number)
            if self._sender is not None:
                self._sender.check()
            if found is not None:
                self._number += 1
                return found.order

    def _tell_progress(self) -> None:
        """Says now and then that this rank lives, for as long as it does."""
        from ray.exceptions import RayError

        while True:
            with suppress(RayError):
                self._ask("heartbeat", self._rank, self._epoch, self._learner.policy.passes)
            time.sleep(PROGRESS_S)

    def _ask(self, method: str, *args: object) -> Any:
        import ray

        return ray.get(getattr(self._job.buffer, method).remote(*args), timeout=ANSWER_S)

    def _until_recorded(self, version: int) -> None:
        """Returns once the driver has recorded the step, since learners restored from a checkpoint do not report
        earlier steps again."""
        while not self._ask("has_recorded", version, self._epoch):
            pass

    def _fetch(self, shares: Shares) -> list[Sample]:
        """This rank's samples. A lost object fails the rank and thereby the group, which restarts from its
        checkpoint."""
        import ray

        references = list(shares[share_of(self._rank, dist.get_world_size(), len(shares))])
        return [sample for samples in ray.get(references, timeout=ANSWER_S) for sample in samples]

    # --- orders -------------------------------------------------------------------------------------------------------

    def _train(self, order: Train) -> None:
        samples = self._fetch(order.shares)
        if self._sender is not None:
            self._enter(LearnerState.PUBLISHING)
            self._sender.withdraw()
        self._enter(LearnerState.LEARNING)
        began = steady()
        waited = self._seconds_by_state().get(LearnerState.SAMPLES, 0.0)
        report = self._learner.step(samples, order.version)
        ended = steady()
        self._version, self._cursor = order.version + 1, order.cursor
        self._fresh = tuple(sample.token_ids for sample in samples[:PROBES])
        self._step = Stepped(
            version=self._version,
            report=report,
            began=began,
            ended=ended,
            waited=waited - self._waited,
            weights=None,
            probes=(),
        )
        self._waited = waited
        if not self._job.publish:
            self._tell_step()

    def _publish(self) -> None:
        self._enter(LearnerState.PUBLISHING)
        weights, probes = self._snapshot()
        if self._step is not None:
            self._step = replace(self._step, weights=weights, probes=probes)
            self._tell_step()

    def _tell_step(self) -> None:
        if self._rank == 0 and self._step is not None:
            self._ask("emit", replace(self._step, spent=self._seconds_by_state()), self._epoch)
        self._step = None

    def _end(self) -> None:
        self._enter(LearnerState.SAVING)
        self._learner.save_model(Path(self._job.output))
        self._writer.wait()
        if self._rank == 0:
            self._ask("emit", Finished(version=self._version, spent=self._seconds_by_state()), self._epoch)
            while not self._ask("released"):
                pass

    # --- publishing ---------------------------------------------------------------------------------------------------

    def _prepare_publishing(self) -> None:
        config, store = self._job.weights, self._job.weight_store
        assert store is not None
        self._sender = find_sender(config.transport)(Ranks(own_node()), store)
        self._parts = self._learner.parts(BUCKET_BYTES)

    def _snapshot(self) -> tuple[Published | None, tuple[Probe, ...]]:
        """Publishes the weights; returns them with the probes for the engines. Collective; empty on all ranks but 0."""
        if self._sender is None or self._parts is None:
            return None, ()
        sequences = probed(self._job, self._fresh)
        samples = [all_trained(token_ids) for token_ids in sequences]
        logprobs = self._learner.logprobs(samples, temperature=self._job.probe_temperature)
        published = self._sender.send(self._parts, self._version, f"{self._version}-{self._epoch}-{self._number}")
        if self._job.takes_turns:
            self._learner.rest()
        if published is None:
            return None, ()
        return published, tuple(Probe(token_ids=t, logprobs=p) for t, p in zip(sequences, logprobs, strict=True))


def probed(job: LearnJob, fresh: tuple[Tokens, ...]) -> list[Tokens]:
    """Probe sequences of one version: the fixed ones, and prefixes of `fresh` ones, or of fixed ones if there are too
    few. Every rank has the same number, since with ZeRO-3 each forward pass is a collective."""
    filled = (*fresh, *job.probe * PROBES)[:PROBES]
    return [*job.probe, *(token_ids[: job.probe_tokens] for token_ids in filled)]


def restore(learner: Learner, other: CheckpointFolder | None = None) -> tuple[int, int | Cursor]:
    """(version, cursor) of the job's last checkpoint, or of the `other` one; (0, 0) without any."""
    import ray.train

    found = ray.train.get_checkpoint()
    if found is None and other is not None:
        found = ray.train.Checkpoint(other.path, filesystem=other.filesystem)
    if found is None:
        return 0, 0
    with found.as_directory() as folder:
        learner.restore(Path(folder))
        progress = json.loads((Path(folder) / PROGRESS).read_text())
    return progress["version"], progress["cursor"]
