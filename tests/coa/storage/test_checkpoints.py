"""What a kill leaves in the folder of checkpoints is mended, so that Ray Train starts from it."""

from pathlib import Path
from typing import Any

import pytest
from ray.train import CheckpointConfig
from ray.train.v2._internal.execution.checkpoint.checkpoint_manager import CheckpointManager
from ray.train.v2._internal.execution.storage import StorageContext

from coa.storage.checkpoints import RECORD, mend

WHOLE = '{"checkpoint_results": [{"checkpoint_dir_name": "checkpoint_2"}]}'


def names(run: Path) -> list[str]:
    return sorted(path.name for path in run.glob("checkpoint_*") if path.is_dir())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for name in ("checkpoint_1", "checkpoint_2", "checkpoint_3"):
        (tmp_path / name / "state").mkdir(parents=True)
    return tmp_path


def test_checkpoints_of_which_there_is_no_record_are_removed(run: Path) -> None:
    mend(run)
    assert names(run) == []


def test_checkpoints_that_the_record_does_not_name_are_removed(run: Path) -> None:
    """They were being written when everything ended."""
    (run / RECORD).write_text(WHOLE)
    mend(run)
    assert names(run) == ["checkpoint_2"]
    assert (run / RECORD).read_text() == WHOLE


@pytest.mark.parametrize("record", ["", WHOLE[:40]], ids=["empty", "cut short"])
@pytest.mark.parametrize(("there", "left"), [(3, ["checkpoint_1", "checkpoint_2"]), (1, ["checkpoint_1"]), (0, [])])
def test_from_a_record_that_was_cut_short_ray_starts_at_the_newest_checkpoint_that_is_whole(
    tmp_path: Path, record: str, there: int, left: list[str]
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    for number in range(1, there + 1):
        (run / f"checkpoint_{number}").mkdir()
    (run / RECORD).write_text(record)
    mend(run)
    assert names(run) == left
    storage = StorageContext(storage_path=str(tmp_path), experiment_dir_name="run")
    config: Any = CheckpointConfig(num_to_keep=2)
    newest: Any = CheckpointManager(config, storage).latest_checkpoint_result
    assert (newest and Path(newest.checkpoint.path).name) == (left[-1] if left else None)
