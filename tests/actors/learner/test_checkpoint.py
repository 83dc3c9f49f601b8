"""Checkpoints that are written beside training: tried again whole, and waited for no longer than other ranks wait."""

import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray.train
import torch
from pyarrow.fs import LocalFileSystem

from actors.learner import checkpoint
from actors.learner.checkpoint import PROGRESS, Snapshot, Writer
from actors.learner.config import LearnerConfig
from coa.errors import DiskFull, InfrastructureError
from coa.storage import digests


class Failing:
    """A filesystem that takes nothing for so many times."""

    def __init__(self, failures: int) -> None:
        self.failures, self._inner = failures, LocalFileSystem()

    def create_dir(self, *args: Any, **kwargs: Any) -> None:
        self._inner.create_dir(*args, **kwargs)

    def open_output_stream(self, path: str) -> Any:
        if self.failures:
            self.failures -= 1
            raise OSError("try again")
        return self._inner.open_output_stream(path)


def learner_with(state: Mapping[str, object]) -> Any:
    """A learner whose state is this."""
    return SimpleNamespace(snapshot=lambda: Snapshot(dict(state)))


@pytest.fixture
def disk() -> Failing:
    return Failing(1)


@pytest.fixture
def uploads(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, disk: Failing) -> list[Any]:
    """What Ray Train is given to upload, over a filesystem that fails once."""
    storage = SimpleNamespace(
        storage_filesystem=disk,
        experiment_fs_path=str(tmp_path),
        build_checkpoint_path_from_name=lambda name: str(tmp_path / name),
    )
    given: list[Any] = []
    monkeypatch.setattr(ray.train, "get_context", lambda: SimpleNamespace(get_storage=lambda: storage))
    monkeypatch.setattr(ray.train, "Checkpoint", lambda path, filesystem: path)
    monkeypatch.setattr(ray.train, "report", lambda *_, checkpoint_upload_fn, **__: given.append(checkpoint_upload_fn))
    return given


def test_an_upload_that_is_tried_again_writes_everything_again(uploads: list[Any], tmp_path: Path) -> None:
    state = {"state/weights.pt": torch.arange(5)}
    writer = Writer(start=1)
    there_when_asked: list[bool] = []
    progress = tmp_path / "kept" / PROGRESS
    writer.write(learner_with(state), 3, "progress", lambda: there_when_asked.append(progress.exists()))
    [upload] = uploads
    with pytest.raises(OSError, match="try again"):
        upload(None, "kept")
    assert there_when_asked == []
    upload(None, "kept")
    assert there_when_asked == [True], "it waits for the driver's word once all is written"
    assert torch.equal(torch.load(tmp_path / "kept" / "state" / "weights.pt"), torch.arange(5))
    assert (tmp_path / "kept" / PROGRESS).read_text() == "progress"
    writer.wait()


def test_a_checkpoint_is_named_by_its_step_and_by_the_start_that_wrote_it(
    uploads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[str] = []
    monkeypatch.setattr(ray.train, "report", lambda *_, checkpoint_dir_name, **__: named.append(checkpoint_dir_name))
    for start, version in ((1, 30), (2, 30), (10, 120)):
        Writer(start).write(learner_with({}), version, None)
    assert named == ["checkpoint_00000030_0001", "checkpoint_00000030_0002", "checkpoint_00000120_0010"]


def test_digests_are_written_behind_files_that_are_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    noted = tmp_path / "digests" / "rank-00000.json"

    def sync(path: Path) -> None:
        assert path == noted or not noted.exists()
        done.append(path.name)

    monkeypatch.setattr(digests, "sync", sync)
    monkeypatch.setattr(digests, "sync_folder", lambda path: done.append(path.name))
    state = {"state/a.pt": {"w": torch.arange(5)}, "state/b.pt": torch.zeros(3), PROGRESS: '{"version": 3}'}
    Snapshot(state).write(LocalFileSystem(), str(tmp_path))
    assert done[:4] == ["a.pt", "b.pt", PROGRESS, "rank-00000.json"]
    assert {"state", "digests", tmp_path.name, tmp_path.parent.name} == set(done[4:])
    assert digests.damage(LocalFileSystem(), str(tmp_path)) == ""
    [written] = digests.rank_files(LocalFileSystem(), str(tmp_path))
    assert {name: file.size for name, file in written.files.items()} == {
        name: (tmp_path / name).stat().st_size for name in state
    }
    assert written.size == sum((tmp_path / name).stat().st_size for name in state)


class Full(Failing):
    """A filesystem whose disk is full."""

    def open_output_stream(self, path: str) -> Any:
        return self._inner.open_output_stream("/dev/full")


@pytest.mark.parametrize("content", ["progress", torch.zeros(1 << 20)], ids=["text", "tensor"])
def test_a_full_disk_is_told_of_by_the_file_that_did_not_fit(content: Any) -> None:
    with pytest.raises(DiskFull, match=r"^/dev/full-state: no space left on the disk$"):
        Snapshot({"full-state": content}).write(Full(0), "/dev")


def test_a_rank_that_waits_for_its_checkpoint_says_so_before_others_give_it_up(
    uploads: list[Any], disk: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk.failures = 0
    assert LearnerConfig().collective_s > checkpoint.WRITE_S
    writer = Writer(start=1)
    writer.write(learner_with({}), 3, None)
    monkeypatch.setattr(checkpoint, "WRITE_S", 0.01)
    with pytest.raises(InfrastructureError, match=r"not written within 0\.01 s"):
        writer.wait()
    threading.Thread(target=uploads[0], args=(None, "kept")).start()
    monkeypatch.undo()
    writer.wait()
