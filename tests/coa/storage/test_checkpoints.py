"""What a kill or a bad disk leaves in the folder of checkpoints is mended, so that Ray Train starts from it."""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pyarrow.fs import FileSystem
from ray.train import CheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext

from coa.errors import UserError
from coa.storage.checkpoints import RECORD, STARTS, CheckpointFolder, checkpoint_name, mend, open_folder
from coa.storage.keeping import CheckpointsConfig, superfluous
from tests.support.checkpoints import STATES, folder_at, latest, write_checkpoint, write_checkpoints

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


def wall_clocks(dice: random.Random) -> Iterator[str]:
    """Ray Train's names of checkpoints in a year: one every forty minutes, with breaks of days where no clock changes;
    on nodes of several zones, whose clocks are set back by an hour now and then."""
    zones = [ZoneInfo(name) for name in ("Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Tokyo")]
    now, zone, late = datetime(2026, 1, 1, tzinfo=UTC), zones[0], timedelta(0)
    while now.year == 2026:
        changes = zone.utcoffset(now) != zone.utcoffset(now + timedelta(days=3))
        now += timedelta(minutes=40) if changes or dice.random() < 0.5 else timedelta(days=3)
        if dice.random() < 0.05:
            zone = dice.choice(zones)
        if dice.random() < 0.05:
            late += timedelta(hours=1)
        yield f"checkpoint_{(now - late).astimezone(zone):%Y-%m-%d_%H-%M-%S.%f}"


@pytest.mark.parametrize("by_clock", [True, False], ids=["names of local time", "names of steps"])
def test_in_a_year_of_clocks_that_change_the_newest_by_step_is_always_kept_and_continued(by_clock: bool) -> None:
    dice, config = random.Random(0), CheckpointsConfig(keep=2)
    folder = CheckpointFolder(FileSystem.from_uri("mock:///")[0], "rl")
    older, start, went_back = "", 1, 0
    for step, clock in enumerate(wall_clocks(dice), start=1):
        name = clock if by_clock else checkpoint_name(step, start)
        went_back, older = went_back + (clock < older), clock
        write_checkpoint(Path(folder.of(name)), step, folder.filesystem)
        folder.write_record([*(folder.recorded() or ()), name])
        for superfluous_name in superfluous(folder.versions(), config, {}):
            folder.remove(superfluous_name)
        assert list(folder.versions().values()) == [step - 1, step][-min(step, 2) :]
        if dice.random() < 0.1:
            mended = mend(folder)
            assert (mended.version, mended.caution()) == (step, "")
            assert (folder.recorded() or [])[-1] == name
            start = mended.start
    assert went_back > 10, "or this shows nothing"


def test_a_run_that_began_with_names_of_local_time_goes_on_with_names_of_steps(tmp_path: Path) -> None:
    names = ["checkpoint_2026-10-25_02-40-00.000001", "checkpoint_2026-10-25_02-10-00.000001", checkpoint_name(30, 1)]
    for name, version in zip(names, (10, 20, 30), strict=True):
        write_checkpoint(tmp_path / name, version)
    folder_at(tmp_path).write_record(sorted(names))
    assert folder_at(tmp_path).versions() == dict(zip(names, (10, 20, 30), strict=True))
    assert mend(folder_at(tmp_path)).version == 30
    assert (started(tmp_path), latest(tmp_path)) == (names[2], names[2])
    cut(tmp_path / names[2])
    assert (mend(folder_at(tmp_path)).version, started(tmp_path)) == (20, names[1])


def test_a_record_that_was_cut_short_loses_the_newest_by_step_alone(tmp_path: Path) -> None:
    """The newest may be unfinished, and has no progress then."""
    for name, version in (("checkpoint_03", 10), ("checkpoint_02", 20), ("checkpoint_01", 30)):
        write_checkpoint(tmp_path / name, version)
    (tmp_path / "checkpoint_01" / "progress.json").unlink()
    (tmp_path / RECORD).write_text("{")
    assert (mend(folder_at(tmp_path)).version, names(tmp_path)) == (20, ["checkpoint_02", "checkpoint_03"])


def test_a_linked_folder_is_mended_as_any_other(run: Path) -> None:
    link = run.parent / f"{run.name}-link"
    link.symlink_to(run)
    cut(run / "checkpoint_2")
    assert (mend(folder_at(link)).version, started(link)) == (4, "checkpoint_1")
    assert names(run) == ["checkpoint_0", "checkpoint_1", "damaged_checkpoint_2"]


def test_no_two_starts_have_the_same_number(tmp_path: Path) -> None:
    assert [mend(folder_at(tmp_path)).start for _ in range(3)] == [1, 2, 3]
    write_checkpoint(tmp_path / checkpoint_name(5, 7), 5)
    assert folder_at(tmp_path).count_start() == 8
    (tmp_path / STARTS).write_text("[")
    assert folder_at(tmp_path).count_start() == 8


def test_of_pruned_checkpoints_nothing_is_said_where_the_newest_is_damaged(run: Path) -> None:
    shutil.rmtree(run / "checkpoint_0")
    shutil.rmtree(run / "checkpoint_1")
    cut(run / "checkpoint_2")
    assert list(mend(folder_at(run)).damaged) == ["checkpoint_2"]
