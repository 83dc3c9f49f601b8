"""The overrides of a quick run."""

from typing import Any

from jobs.commands.train import COMMAND
from jobs.launch import prepare


def prepared(*overrides: str, quick: bool = True) -> Any:
    return prepare(COMMAND, {"recipe": "own_tasks", "overrides": overrides, "quick": quick})


def test_it_is_small_and_has_a_folder_of_its_own() -> None:
    small, whole = prepared().config, prepared(quick=False).config
    assert (small.run_dir, whole.run_dir) == ("runs/own_tasks-quick", "runs/own_tasks")
    assert (small.distill.keep, small.sft.steps_of(1000), small.rl.steps, small.evaluation.tasks) == (64, 8, 2, 16)
    assert whole.sft.epochs == 1


def test_what_the_user_sets_counts(tmp_path: Any) -> None:
    config = prepared("sft.steps=3", f"run_dir={tmp_path / 'mine'}").config
    assert (config.sft.steps, config.run_dir) == (3, str(tmp_path / "mine"))
