"""Asynchronous checkpoints: a copy of the rank's state in host memory is written to files while training continues.

snapshot ── DeepSpeed's own state, each tensor copied once ──► training goes on
    └─ write ── in a thread, straight to where it stays (any filesystem of pyarrow); digests of what was written last
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.distributed as dist
from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

from actors.learner.buffer import BEGAN
from coa.errors import InfrastructureError
from coa.storage.checkpoints import PROGRESS, checkpoint_name
from coa.storage.digests import RankFiles, write_digests, write_file

if TYPE_CHECKING:
    import deepspeed

TAG = "state"
WRITE_S = 1500.0
"""Maximum seconds to write a checkpoint; after that the rank fails. Shorter than the collectives' timeout
(`cluster.learner_group.COLLECTIVE_S`), whose error would not name the cause."""


@dataclass(frozen=True)
class Snapshot:
    """One rank's part of a checkpoint, in memory."""

    files: dict[str, object]
    """Content of each file, by its path within the checkpoint."""
    rank: int = 0
    ranks: int = 1
    """Number of ranks whose parts make up the checkpoint."""

    def write(self, filesystem: Any, folder: str) -> None:
        """Writes the files below `folder` of a pyarrow filesystem, and their digests last. Raises DiskFull if there is
        no room."""
        began = time.monotonic()
        files = {
            name: write_file(filesystem, PurePosixPath(folder, name), partial(_fill, content))
            for name, content in self.files.items()
        }
        written = RankFiles(ranks=self.ranks, seconds=time.monotonic() - began, files=files)
        write_digests(filesystem, folder, self.rank, written)


def _fill(content: object, stream: Any) -> None:
    if isinstance(content, str):
        stream.write(content.encode())
    else:
        torch.save(content, stream)


class _Keeping(TorchCheckpointEngine):
    """A checkpoint engine that keeps copies of the state that DeepSpeed would write."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = folder
        self.files: dict[str, object] = {}

    def save(self, state_dict: object, path: str) -> None:
        self.files[str(PurePosixPath(path).relative_to(self._folder))] = copied(state_dict)


def snapshot(engine: "deepspeed.DeepSpeedEngine", *, exclude_frozen: bool) -> Snapshot:
    """Copies the state of a DeepSpeed engine into host memory; collective."""
    folder = tempfile.mkdtemp()  # DeepSpeed creates folders and writes a script even so
    usual, engine.checkpoint_engine = engine.checkpoint_engine, _Keeping(folder)
    try:
        engine.save_checkpoint(folder, tag=TAG, save_latest=False, exclude_frozen_parameters=exclude_frozen)
        return Snapshot(engine.checkpoint_engine.files, dist.get_rank(), dist.get_world_size())
    finally:
        engine.checkpoint_engine = usual
        shutil.rmtree(folder, ignore_errors=True)


def copied(value: object) -> object:
    """A deep copy in host memory, which no other code writes to."""
    match value:
        case torch.Tensor():
            return value.detach().cpu() if value.device.type != "cpu" else value.detach().clone()
        case dict():
            return type(value)((key, copied(item)) for key, item in value.items())
        case list():
            return [copied(item) for item in value]
        case tuple() if type(value) is tuple:
            return tuple(copied(item) for item in value)
        case _:
            return value


class HasState(Protocol):
    """A learner."""

    def snapshot(self) -> Snapshot: ...


class Writer:
    """Writes a rank's checkpoints one after another in threads of Ray Train. Ray Train keeps a checkpoint once all
    ranks have written it, and gives the last one to a restarted group."""

    def __init__(self, start: int) -> None:
        """start: number of the learners' start, which is part of the checkpoints' names."""
        self._start = start
        self._idle = threading.Event()
        self._idle.set()

    def write(
        self, learner: HasState, version: int, progress: str | None, recorded: Callable[[], object] = lambda: None
    ) -> None:
        """Takes a snapshot and returns while it is being written; collective. `progress`, if given, is written as
        PROGRESS. The checkpoint does not count as complete before `recorded` has returned."""
        import ray.train
        from ray.train import CheckpointUploadMode

        self.wait()  # at most one snapshot in memory
        state = learner.snapshot()
        began = time.time()
        if progress is not None:
            state.files[PROGRESS] = progress
        storage: Any = ray.train.get_context().get_storage()

        def upload(_: ray.train.Checkpoint, name: str) -> ray.train.Checkpoint:
            """Writes the snapshot. Ray calls it again if it fails; the files are kept until they are written."""
            path = storage.build_checkpoint_path_from_name(name)
            try:
                state.write(storage.storage_filesystem, path)
                state.files.clear()
                recorded()
            finally:
                self._idle.set()
            return ray.train.Checkpoint(path, filesystem=storage.storage_filesystem)

        self._idle.clear()
        ray.train.report(
            {"version": version, BEGAN: began},
            checkpoint=ray.train.Checkpoint(storage.experiment_fs_path, filesystem=storage.storage_filesystem),
            checkpoint_dir_name=checkpoint_name(version, self._start),
            checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
            checkpoint_upload_fn=upload,
            delete_local_checkpoint_after_upload=False,
        )

    def wait(self) -> None:
        """Returns once nothing is being written; raises InfrastructureError after WRITE_S."""
        if not self._idle.wait(WRITE_S):
            raise InfrastructureError(f"a checkpoint was not written within {WRITE_S:g} s")
