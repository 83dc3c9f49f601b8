"""Where a run keeps its learners' checkpoints."""

import io
import json
import shutil
from pathlib import Path

import pytest

from coa.config import load
from coa.errors import UserError
from coa.storage.checkpoints import CheckpointFolder
from coa.storage.mirror import Manifest
from jobs.cli import main
from jobs.recipe.find import find_recipe
from jobs.recipe.resume import free_to_change
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.mirrored import lost_run, mirrored
from jobs.run.run_dir import RunDir, Stored, storage_of
from jobs.run.session import storage_on_disk


def run_at(folder: Path, *settings: str) -> RunDir:
    config = load(Recipe, find_recipe("tiny"), [f"run_dir={folder}", "wandb.mode=disabled", *settings])
    return RunDir(config, Console(io.StringIO(), io.StringIO()))


def test_they_are_in_the_runs_folder(tmp_path: Path) -> None:
    assert run_at(tmp_path / "run").storage().path == str(tmp_path / "run" / "checkpoints")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_run_has_a_folder_of_its_name_in_a_storage(scheme: str, tmp_path: Path) -> None:
    run = run_at(tmp_path / "runs" / "demo", f"checkpoints.storage={scheme}{tmp_path}/store")
    assert run.storage().path == f"{tmp_path}/store/demo"
    assert run.storage() == storage_of(run.folder), "a resumed run finds its own"


def test_a_run_that_has_a_folder_of_another_name_there_keeps_it(tmp_path: Path) -> None:
    run = run_at(tmp_path / "demo", f"checkpoints.storage={tmp_path}/store")
    run.prepare()
    Stored(storage=f"{tmp_path}/store", folder="demo-1f2e").write(run.folder)
    with mirrored(run):
        assert run.storage().path == f"{tmp_path}/store/demo-1f2e"
        token = json.loads((run.checkpoints / "storage.json").read_text())["token"]
    assert Manifest.of((tmp_path / "store" / "demo-1f2e" / "run.json").read_text()).token == token


class Job:
    """`coa train` that leaves a stage's result, and can be interrupted before it."""

    def __init__(self, folder: Path, *settings: str) -> None:
        self.folder, self.out, self.settings = folder, io.StringIO(), settings

    def __call__(self, stage: str = "", error: type[BaseException] | None = None) -> RunDir:
        config = run_at(self.folder, *self.settings).config
        console = Console(self.out, self.out)
        if (lost := lost_run(config)) is not None:
            lost.check()
            lost.fetch(console)
        run = RunDir(config, console)
        with mirrored(run):
            run.prepare()
            if error is not None:
                raise error
            run.finish(stage, {"steps": 1})
        return run


def test_a_run_whose_folder_is_lost_goes_on_from_its_copy(tmp_path: Path) -> None:
    job = Job(tmp_path / "runs" / "demo", f"checkpoints.storage={tmp_path}/store")
    job("distill")
    with pytest.raises(KeyboardInterrupt):
        job(error=KeyboardInterrupt)
    shutil.rmtree(job.folder)
    run = job("sft")
    assert [run.result(stage) for stage in ("distill", "sft", "rl")] == [{"steps": 1}, {"steps": 1}, None]
    assert job.out.getvalue().count(f"the run goes on from its copy in {tmp_path}/store/demo") == 1
    shutil.rmtree(job.folder)
    other = Job(job.folder, *job.settings, "seed=7")
    with pytest.raises(UserError, match=f"{tmp_path}/store/demo holds a run with seed=0, not 7: resume it"):
        other("rl")
    assert not job.folder.exists()


@pytest.mark.parametrize("command", ["train", "rl"])
def test_a_dry_run_of_a_lost_folder_says_that_it_would_be_fetched(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = Job(tmp_path / "runs" / "demo", f"checkpoints.storage={tmp_path}/store")
    job("distill")
    shutil.rmtree(job.folder)
    words = [command, "--recipe", "tiny", f"run_dir={job.folder}", "wandb.mode=disabled", *job.settings, "--dry-run"]
    assert main(words) == 0
    said = f"demo is lost: the command would first fetch its copy from {tmp_path}/store/demo, and go on there"
    assert said in capsys.readouterr().out
    assert not job.folder.exists()
    assert main([*words, "seed=7"]) == 2
    assert f"{tmp_path}/store/demo holds a run with seed=0, not 7" in capsys.readouterr().err


def test_an_interrupted_fetch_is_begun_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path / "runs" / "demo", f"checkpoints.storage={tmp_path}/store")
    job("distill")
    shutil.rmtree(job.folder)
    copy, copied = CheckpointFolder.copy_to, list[str]()

    def stopped(self: CheckpointFolder, name: str, path: Path) -> None:
        copied.append(name)
        if len(copied) == 3:  # of the folder's files: the first one is read to compare the settings
            raise KeyboardInterrupt
        copy(self, name, path)

    monkeypatch.setattr(CheckpointFolder, "copy_to", stopped)
    with pytest.raises(KeyboardInterrupt):
        job("sft")
    assert job("sft").result("distill") == {"steps": 1}


def test_a_failure_of_the_storage_does_not_hide_what_ended_the_run(tmp_path: Path) -> None:
    job = Job(tmp_path / "runs" / "demo", f"checkpoints.storage={tmp_path}/store")

    class Ended(Exception):
        def __init__(self) -> None:
            shutil.rmtree(tmp_path / "store")
            (tmp_path / "store").write_text("a file")

    with pytest.raises(Ended):
        job(error=Ended)
    assert f"{tmp_path}/store/demo can't be read: " in job.out.getvalue()


def test_a_storage_that_is_an_address_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="checkpoints can't be kept in nowhere://x"):
        run_at(tmp_path, "checkpoints.storage=nowhere://x").storage()


def test_a_resumed_run_keeps_its_storage_and_may_keep_other_checkpoints() -> None:
    assert not free_to_change("checkpoints.storage")
    assert all(
        free_to_change(f"checkpoints.{key}") for key in ("keep", "keep_every", "keep_best", "export_every", "grace_s")
    )


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
