"""Where a run keeps its learners' checkpoints."""

import io
from pathlib import Path

import pytest

from coa.config import load
from coa.errors import UserError
from jobs.cli import find_recipe
from jobs.recipe.resume import free_to_change
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.run.session import storage_on_disk


def run_at(folder: Path, *settings: str) -> RunDir:
    config = load(Recipe, find_recipe("tiny"), [f"run_dir={folder}", "wandb.mode=disabled", *settings])
    return RunDir(config, Console(io.StringIO(), io.StringIO()))


def test_they_are_in_the_runs_folder(tmp_path: Path) -> None:
    assert run_at(tmp_path / "run").storage().path == str(tmp_path / "run" / "checkpoints")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_runs_of_one_name_do_not_share_a_folder_of_a_storage(scheme: str, tmp_path: Path) -> None:
    setting = f"checkpoints.storage={scheme}{tmp_path}/store"
    first, second = (run_at(tmp_path / name / "demo", setting).storage().path for name in ("a", "b"))
    assert first != second
    assert {Path(first).parent, Path(second).parent} == {tmp_path / "store"}
    assert Path(first).name.startswith("demo-")
    assert run_at(tmp_path / "a" / "demo", setting).storage().path == first, "a resumed run finds its own"


def test_a_storage_that_is_an_address_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="checkpoints can't be kept in nowhere://x"):
        run_at(tmp_path, "checkpoints.storage=nowhere://x").storage()


def test_a_resumed_run_keeps_its_storage_and_may_keep_other_checkpoints() -> None:
    assert not free_to_change("checkpoints.storage")
    assert all(free_to_change(f"checkpoints.{key}") for key in ("keep", "keep_every", "keep_best", "export_every"))


@pytest.mark.parametrize(
    ("settings", "folder"),
    [
        ([], None),
        (["checkpoints.storage=mock:///bucket"], None),
        (["checkpoints.storage=/shared/x"], Path("/shared/x")),
        (["checkpoints.storage=file:///shared/x"], Path("/shared/x")),
    ],
)
def test_nodes_have_to_see_a_storage_that_is_a_folder(settings: list[str], folder: Path | None) -> None:
    assert storage_on_disk(load(Recipe, find_recipe("tiny"), settings)) == folder
