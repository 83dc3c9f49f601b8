"""What a kill or a bad disk leaves in the folder of checkpoints is mended, so that Ray Train starts from it."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyarrow.fs import FileSystem
from ray.train import CheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext

from coa.errors import UserError
from coa.storage.checkpoints import RECORD, CheckpointFolder, mend, open_folder
from tests.support.checkpoints import STATES, folder_at, latest, write_checkpoints

WHOLE = '{"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_1"}]}'


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("*_*") if path.is_dir())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Checkpoints of the versions 2, 4 and 6, named by 0, 1 and 2."""
    write_checkpoints(tmp_path, 2, 4, 6)
    return tmp_path


def started(run: Path) -> str | None:
    """The checkpoint that Ray Train starts from."""
    storage = StorageContext(storage_path=str(run.parent), experiment_dir_name=run.name)
    config: Any = CheckpointConfig(num_to_keep=2)
    newest: Any = CheckpointManager(config, storage).latest_checkpoint_result
    return newest and Path(newest.checkpoint.path).name


def test_a_whole_checkpoint_is_started_from(run: Path) -> None:
    before = (run / RECORD).read_bytes()
    mended = mend(folder_at(run))
    assert (mended.version, mended.damaged, mended.caution()) == (6, {}, "")
    assert (run / RECORD).read_bytes() == before
    assert names(run) == ["checkpoint_0", "checkpoint_1", "checkpoint_2"]


def cut(newest: Path) -> None:
    path = newest / STATES[1]
    os.truncate(path, path.stat().st_size - 1)


def flip(newest: Path) -> None:
    path = newest / STATES[1]
    found = bytearray(path.read_bytes())
    found[1000] ^= 1
    path.write_bytes(found)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file cut": (cut, "state/rank-1.pt has 4095 of 4096 bytes"),
    "a byte flipped": (flip, "state/rank-1.pt is not what was written"),
    "a file missing": (lambda newest: (newest / STATES[0]).unlink(), "state/rank-0.pt is missing"),
    "a folder missing": (shutil.rmtree, "it is gone"),
    "a rank's digests missing": (
        lambda newest: (newest / "digests/rank-00001.json").unlink(),
        "it has the digests of 1 of 2 ranks",
    ),
    "all digests missing": (
        lambda newest: shutil.rmtree(newest / "digests"),
        "it has the digests of 0 of 1 ranks",
    ),
    "digests cut": (
        lambda newest: (newest / "digests/rank-00001.json").write_text('{"ranks": 2, "fi'),
        "its digests can't be read: Unterminated string",
    ),
    "digests without a field": (
        lambda newest: (newest / "digests/rank-00001.json").write_text('{"ranks": 2}'),
        "its digests can't be read: ",
    ),
}


@pytest.mark.parametrize(("do", "wrong"), DAMAGES.values(), ids=DAMAGES)
def test_from_a_damaged_checkpoint_learners_go_back_to_the_one_before(
    run: Path, do: Callable[[Path], object], wrong: str
) -> None:
    do(run / "checkpoint_2")
    mended = mend(folder_at(run))
    assert mended.version == 4
    assert mended.caution().startswith(
        "a damaged checkpoint is set aside, and learners start from the one of version 4 (checkpoint_2: " + wrong
    )
    assert (started(run), latest(run)) == ("checkpoint_1", "checkpoint_1")
    there = ["damaged_checkpoint_2"] if wrong != "it is gone" else []
    assert names(run) == ["checkpoint_0", "checkpoint_1", *there]
    assert mend(folder_at(run)).damaged == {}
    assert names(run) == ["checkpoint_0", "checkpoint_1"], "what was set aside before is removed"


def test_no_more_is_read_than_the_newest_whole_checkpoint(run: Path) -> None:
    cut(run / "checkpoint_0")
    assert mend(folder_at(run)).damaged == {}
    flip(run / "checkpoint_2")
    flip(run / "checkpoint_1")
    mended = mend(folder_at(run))
    assert list(mended.damaged) == ["checkpoint_2", "checkpoint_1", "checkpoint_0"]
    assert mended.caution().startswith("a damaged checkpoint is set aside, and learners start from the beginning (")
    assert started(run) is None


def test_a_kept_checkpoint_that_is_gone_stops_no_start(run: Path) -> None:
    shutil.rmtree(run / "checkpoint_0")
    assert mend(folder_at(run)).caution() == ""
    assert started(run) == "checkpoint_2"
    assert folder_at(run).versions() == {"checkpoint_1": 4, "checkpoint_2": 6}


def test_checkpoints_of_which_there_is_no_record_are_removed(run: Path) -> None:
    (run / RECORD).unlink()
    assert mend(folder_at(run)).version is None
    assert names(run) == []


def test_checkpoints_that_the_record_does_not_name_are_removed(run: Path) -> None:
    """They were being written when everything ended."""
    (run / RECORD).write_text(WHOLE)
    mend(folder_at(run))
    assert names(run) == ["checkpoint_1"]
    assert (run / RECORD).read_text() == WHOLE


@pytest.mark.parametrize("record", ["", WHOLE[:40], "{}"], ids=["empty", "cut short", "of something else"])
@pytest.mark.parametrize(("there", "left"), [(3, ["checkpoint_0", "checkpoint_1"]), (1, ["checkpoint_0"]), (0, [])])
def test_from_a_record_that_was_cut_short_ray_starts_at_the_newest_checkpoint_that_is_whole(
    tmp_path: Path, record: str, there: int, left: list[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    write_checkpoints(run, *range(there))
    (run / RECORD).write_text(record)
    mend(folder_at(run))
    assert names(run) == left
    assert started(run) == (left[-1] if left else None)


def test_a_store_of_objects_is_mended_as_a_disk_is_though_it_is_not_read(run: Path) -> None:
    """Its files are whole or absent, and it has checksums of its own."""
    store = FileSystem.from_uri("mock:///")[0]
    folder = CheckpointFolder(store, "bucket/rl")
    for path in sorted(path for path in run.rglob("*") if path.is_file()):
        target = f"bucket/rl/{path.relative_to(run)}"
        store.create_dir(target.rpartition("/")[0])
        with store.open_output_stream(target) as stream:
            stream.write(path.read_bytes())
    assert (mend(folder).version, folder.names()) == (6, ["checkpoint_0", "checkpoint_1", "checkpoint_2"])
    store.delete_file(folder.of(f"checkpoint_2/{STATES[0]}"))
    mended = mend(folder)
    assert (mended.version, mended.damaged) == (4, {"checkpoint_2": "state/rank-0.pt is missing"})
    assert (folder.names(), folder.recorded()) == (["checkpoint_0", "checkpoint_1"], ["checkpoint_0", "checkpoint_1"])


def test_a_storage_is_a_folder_or_an_address(tmp_path: Path) -> None:
    assert open_folder(tmp_path).below("rl").path == str(tmp_path / "rl")
    assert open_folder(f"file://{tmp_path}/").below("rl").path == str(tmp_path / "rl")
    with pytest.raises(UserError, match=r"^checkpoints can't be kept in nowhere://a: Unrecognized filesystem type"):
        open_folder("nowhere://a")


def test_the_version_is_what_the_checkpoint_says_of_itself(run: Path) -> None:
    """A record that was written anew has no metrics."""
    assert all(one["metrics"] == {} for one in json.loads((run / RECORD).read_text())["checkpoint_results"])
    assert folder_at(run).versions() == {"checkpoint_0": 2, "checkpoint_1": 4, "checkpoint_2": 6}
    (run / "checkpoint_1" / "progress.json").unlink()
    assert folder_at(run).versions() == {"checkpoint_0": 2, "checkpoint_2": 6}
