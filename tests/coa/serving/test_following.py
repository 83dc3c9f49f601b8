"""What a run under way has made, from the files that it leaves."""

import json
from pathlib import Path

import pytest

from coa.config import dump, load
from coa.errors import UserError
from coa.serving.following import STATES, Made, caution_of, newest, start_of
from coa.storage.checkpoints import PROGRESS, RECORD, mend
from jobs.recipe.schema import Recipe
from tests.support.checkpoints import folder_at, write_checkpoints


def checkpoint(run: Path, name: str, version: int) -> Path:
    """A whole checkpoint, which the run's list says is the newest."""
    folder = run / "checkpoints" / "rl"
    states = folder / name / STATES
    states.parent.mkdir(parents=True)
    states.write_bytes(b"")
    (folder / name / PROGRESS).write_text(json.dumps({"version": version}))
    last = {"checkpoint_dir_name": name, "metrics": {}}
    (folder / RECORD).write_text(json.dumps({"latest_checkpoint_result": last}))
    return states


def test_the_newest_is_what_the_list_of_checkpoints_says(tmp_path: Path) -> None:
    assert newest(tmp_path) is None
    first = checkpoint(tmp_path, "checkpoint_a", 10)
    assert newest(tmp_path) == Made(10, first, "checkpoint_a")
    second = checkpoint(tmp_path, "checkpoint_b", 20)
    assert newest(tmp_path) == Made(20, second, "checkpoint_b")


def test_a_version_that_was_made_again_is_another_one(tmp_path: Path) -> None:
    checkpoint(tmp_path, "checkpoint_a", 10)
    before = newest(tmp_path)
    checkpoint(tmp_path, "checkpoint_b", 10)
    assert newest(tmp_path) != before


def test_a_checkpoint_without_whole_weights_is_none(tmp_path: Path) -> None:
    checkpoint(tmp_path, "checkpoint_a", 10).unlink()
    assert newest(tmp_path) is None
    (tmp_path / "checkpoints" / "rl" / RECORD).write_text('{"latest_checkpoint_result": null}')
    assert newest(tmp_path) is None


def test_after_a_record_that_was_written_anew_the_checkpoint_before_is_followed(tmp_path: Path) -> None:
    stage = tmp_path / "checkpoints" / "rl"
    for folder in write_checkpoints(stage, 10, 20):
        (folder / STATES).write_bytes(b"")
    (stage / RECORD).write_text("{")
    mend(folder_at(stage))
    assert newest(tmp_path) == Made(10, stage / "checkpoint_0" / STATES, "checkpoint_0")


def test_the_finished_model_is_the_last_version(tmp_path: Path) -> None:
    checkpoint(tmp_path, "checkpoint_a", 30)
    (tmp_path / "checkpoints" / "rl.json").write_text('{"steps": 36}')
    assert newest(tmp_path) == Made(30, tmp_path / "checkpoints" / "rl" / "checkpoint_a" / STATES, "checkpoint_a")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    made = newest(tmp_path)
    assert made is not None
    assert (made.version, made.path, made.finished) == (36, tmp_path / "model", True)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("rl.learner.zero_stage=2", ""),
        (
            "rl.learner.zero_stage=3",
            "RUN is followed to its finished model only: rl.learner.zero_stage=3 shards the weights in its checkpoints",
        ),
        (
            "rl.learner.lora.rank=8",
            "RUN is followed to its finished model only: rl.learner.lora.rank leaves only adapters in its checkpoints",
        ),
        (
            "checkpoints.storage=s3://bucket/x",
            "RUN is followed to its finished model only: checkpoints.storage keeps its checkpoints elsewhere",
        ),
    ],
)
def test_a_run_whose_checkpoints_are_not_followed_is_told(tmp_path: Path, setting: str, told: str) -> None:
    assert caution_of(tmp_path) == "", "of a run without settings nothing is known"
    (tmp_path / "config.yaml").write_text(dump(load(Recipe, None, [setting])))
    assert caution_of(tmp_path) == told.replace("RUN", str(tmp_path))


def test_a_server_starts_with_the_model_before_the_first_version(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no run with a model to serve yet"):
        start_of(tmp_path)
    for folder in (tmp_path / "model", tmp_path / "checkpoints" / "sft-model"):
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
        assert start_of(tmp_path) == folder
