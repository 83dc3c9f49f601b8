"""What each learner rank runs under Ray Train, for SFT and RL alike.

fetch this rank's share of the plan -> step -> tell (with weights) -> checkpoint now and then
"""

import json
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from actors.buffer import Finished, Stepped
from actors.engine import Probe
from actors.learner import Learner
from actors.learner_config import LearnerConfig
from actors.policy import ModelConfig
from coa.types import ENVIRONMENT, Sample, Tokens

PROBES = 2
"""Samples of each batch that are probed in the engines after it, besides the fixed ones."""


@dataclass(frozen=True, kw_only=True)
class LearnJob:
    model_dir: str
    model: ModelConfig
    learner: LearnerConfig
    steps: int
    """The version at which the job ends."""
    buffer: Any
    """Handle of the TrajectoryBuffer."""
    publish: bool
    """Whether weights are told after each step."""
    probe: tuple[Tokens, ...]
    """Token sequences that engines are probed with; at least one where weights are published."""
    probe_tokens: int
    """Of longer sequences, the beginning is probed: an engine takes no prompt as long as its context."""
    checkpoint_every: int
    output: str
    """Folder of the final model."""


def learn(settings: dict[str, Any]) -> None:
    """Ray Train's entry point: `settings["job"]` is a LearnJob."""
    import ray
    import ray.train
    import torch.distributed as dist

    job: LearnJob = settings["job"]
    rank = dist.get_rank()
    learner = Learner(Path(job.model_dir), job.model, job.learner, steps=job.steps)
    version, cursor = restore(learner)
    announce(job, learner, version, cursor)
    while version < job.steps:
        asked = time.time()
        samples, cursor = fetch(job, rank, version)
        began = time.time()
        report = learner.step(samples, version)
        ended = time.time()
        version += 1
        weights, probes = snapshot(job, learner, samples) if job.publish else ([], ())
        if rank == 0:
            event = Stepped(
                version=version,
                report=report,
                began=began,
                ended=ended,
                waited=began - asked,
                weights=weights[0] if weights else None,
                probes=probes,
            )
            ray.get(job.buffer.tell.remote(event))
        if version % job.checkpoint_every == 0 and version < job.steps:
            checkpoint(learner, version, cursor)
    learner.save_model(Path(job.output))
    if rank == 0:
        ray.get(job.buffer.tell.remote(Finished(version=version)))
        ray.get(job.buffer.released.remote())


def fetch(job: LearnJob, rank: int, version: int) -> tuple[list[Sample], int]:
    """This rank's samples, and the plan's cursor. A lost object fails the rank, and with it the group, which restarts
    from its checkpoint."""
    import ray

    references, cursor = ray.get(job.buffer.share.remote(rank, version))
    return [sample for samples in ray.get(list(references)) for sample in samples], cursor


def all_trained(token_ids: Tokens) -> Sample:
    """A sample in which every token counts."""
    zeros = np.zeros(len(token_ids), np.float32)
    return Sample(
        token_ids=token_ids,
        trained=np.ones(len(token_ids), np.bool_),
        imitate=zeros,
        reinforce=zeros,
        sampled_logprobs=zeros,
        versions=np.full(len(token_ids), ENVIRONMENT, np.int32),
    )


def snapshot(job: LearnJob, learner: Learner, samples: list[Sample]) -> tuple[list[Any], tuple[Probe, ...]]:
    """The weights as one object, and log-probs to check engines by. Collective; empty but on rank 0."""
    import ray

    # As many sequences on every rank, since with ZeRO-3 each forward pass is a collective.
    fresh = [*(sample.token_ids for sample in samples), *job.probe * PROBES][:PROBES]
    sequences = [token_ids[: job.probe_tokens] for token_ids in (*job.probe, *fresh)]
    logprobs = learner.logprobs([all_trained(token_ids) for token_ids in sequences])
    weights = learner.weights()
    if weights is None:
        return [], ()
    probes = tuple(Probe(token_ids=t, logprobs=p) for t, p in zip(sequences, logprobs, strict=True))
    return [ray.put(weights)], probes


def announce(job: LearnJob, learner: Learner, version: int, cursor: int) -> None:
    import ray
    import torch.distributed as dist

    weights, probes = snapshot(job, learner, []) if job.publish else ([], ())
    if dist.get_rank() == 0:
        ray.get(job.buffer.start.remote(version, cursor, weights, probes))


def checkpoint(learner: Learner, version: int, cursor: int) -> None:
    """Writes and reports; Ray Train keeps it, and hands it to a group that starts again."""
    import ray.train
    import torch.distributed as dist

    with tempfile.TemporaryDirectory() as folder:
        learner.save(Path(folder))
        if dist.get_rank() == 0:
            (Path(folder) / "progress.json").write_text(json.dumps({"version": version, "cursor": cursor}))
        ray.train.report({"version": version}, checkpoint=ray.train.Checkpoint.from_directory(folder))


def restore(learner: Learner) -> tuple[int, int]:
    """(version, cursor) of the last checkpoint, (0, 0) without one."""
    import ray.train

    found = ray.train.get_checkpoint()
    if found is None:
        return 0, 0
    with found.as_directory() as folder:
        learner.restore(Path(folder))
        progress = json.loads((Path(folder) / "progress.json").read_text())
    return progress["version"], progress["cursor"]
