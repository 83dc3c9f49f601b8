"""What follows a committed checkpoint: its measurements, and the end of those that are not kept."""

import json
import logging
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.learner.buffer import BEGAN, Committed
from cluster.learners.commits import Commits
from coa.storage.keeping import CheckpointsConfig, Keeping
from tests.support.checkpoints import BYTES, folder_at, write_checkpoints

CHECKPOINT = "checkpoint_3"


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    """Checkpoints of the versions 10, 20, 30 and 40, of which the last one is just committed."""
    write_checkpoints(tmp_path / "rl", 10, 20, 30, 40)
    (tmp_path / "rl" / "checkpoint_4" / "state").mkdir(parents=True)
    return tmp_path / "rl"


def report(stage: Path, config: CheckpointsConfig) -> list[Committed]:
    """What the driver is told."""
    told: list[Committed] = []
    keeping = Keeping(folder=folder_at(stage.parent), every=10, config=config, scores=stage.parent / "scores.json")
    buffer: Any = SimpleNamespace(committed=SimpleNamespace(remote=told.append))
    commits: Any = Commits(folder_at(stage), keeping, buffer)
    began = time.time()
    metrics = [{"version": 40, BEGAN: began - ago} for ago in (5, 7)]
    commits.after_report(None, metrics, SimpleNamespace(path=str(stage / CHECKPOINT)))
    return told


def names(stage: Path) -> list[str]:
    return sorted(path.name for path in stage.glob("checkpoint_?"))


def test_the_driver_hears_how_long_it_took(stage: Path) -> None:
    [told] = report(stage, CheckpointsConfig(keep=4))
    assert (told.version, told.write_s) == (40, 1.0)
    assert 7 <= told.commit_s < 8
    assert told.size == 2 * len(BYTES) + (stage / CHECKPOINT / "progress.json").stat().st_size


def test_older_ones_are_removed_and_the_one_that_is_being_written_stays(stage: Path) -> None:
    report(stage, CheckpointsConfig(keep=1, keep_every=20))
    assert names(stage) == ["checkpoint_1", "checkpoint_3", "checkpoint_4"]


def test_the_best_one_is_kept_by_the_scores_that_there_are(stage: Path) -> None:
    (stage.parent / "scores.json").write_text(json.dumps({10: 0.5, 20: 0.25}))
    report(stage, CheckpointsConfig(keep=1, keep_best=True))
    assert names(stage) == ["checkpoint_0", "checkpoint_3", "checkpoint_4"]


def test_a_report_without_a_checkpoint_changes_nothing(stage: Path) -> None:
    nobody: Any = None
    Commits(folder_at(stage), Keeping(folder=folder_at(stage.parent), every=10), nobody).after_report(
        nobody, [{}], None
    )
    assert len(names(stage)) == 5


def test_what_can_not_be_measured_stops_no_training(stage: Path, caplog: pytest.LogCaptureFixture) -> None:
    (stage / CHECKPOINT / "digests" / "rank-00000.json").write_text("{")
    with caplog.at_level(logging.WARNING):
        assert report(stage, CheckpointsConfig(keep=1)) == []
    assert f"after a checkpoint in {stage}" in caplog.text
