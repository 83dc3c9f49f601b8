"""The copy of a run's folder: what is in it, who may work on the run, and the folder that is made of it."""

import json
import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from coa.errors import InfrastructureError, UserError
from coa.storage import mirror as module
from coa.storage.checkpoints import CheckpointFolder, open_folder
from coa.storage.holder import Holder, this_process
from coa.storage.ledger import Ledger
from coa.storage.mirror import FILE, Manifest, Mirror, files_of

US = this_process()
ELSEWHERE = Holder("other", 7, "2026-11-23 00:12:14", 5.0)


def quiet(_: str) -> "nullcontext[None]":
    return nullcontext()


@pytest.fixture
def there(tmp_path: Path) -> CheckpointFolder:
    return open_folder(tmp_path / "store").below("demo")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "runs" / "demo"
    for name, text in {
        "config.yaml": "seed: 0\n",
        "ledger.jsonl": "{}\n",
        "checkpoints/sft.json": "{}",
        "checkpoints/storage.json": "{}",
        "trajectories/rl-00001.parquet": "rows",
        "logs/driver.log": "said",
        "lease.json": "{}",
        "wandb/run-id": "abc",
        "wandb/offline-run-1/run.wandb": "large",
        "batches/.rl-00002.arrow.7.partial": "half",
        "checkpoints/.sft-model.partial/config.json": "half",
        "größe/é.json": "[]",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


COPIED = [
    "checkpoints/sft.json",
    "config.yaml",
    "größe/é.json",
    "ledger.jsonl",
    "trajectories/rl-00001.parquet",
    "wandb/run-id",
]


def begun(folder: Path, there: CheckpointFolder, token: str = "t", us: Holder = US) -> Mirror:
    mirror = Mirror(folder, there, us, token)
    mirror.begin(quiet, new=False)
    return mirror


def manifest(there: CheckpointFolder) -> Manifest:
    return Manifest.of(Path(there.of(FILE)).read_text())


def test_what_lies_behind_a_link_in_the_place_of_a_run_folder_is_copied_and_nothing_else(
    folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "disk" / "model").mkdir(parents=True)
    (tmp_path / "disk" / "model" / "config.json").write_text("{}")
    shutil.move(folder / "trajectories", tmp_path / "disk")
    for name in ("trajectories", "model", "notes"):
        (folder / name).symlink_to(tmp_path / "disk" / name.replace("notes", "model"))
    assert sorted(name for name, _ in files_of(folder)) == sorted([*COPIED, "model/config.json"])


def test_what_is_half_written_or_of_the_host_is_not_copied(folder: Path) -> None:
    assert sorted(name for name, _ in files_of(folder)) == COPIED


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_lost_folder_is_made_anew_with_its_times(folder: Path, tmp_path: Path, scheme: str) -> None:
    there = open_folder(f"{scheme}{tmp_path}/store").below("demo")
    os.utime(folder / "ledger.jsonl", ns=(5, 1_234_567_891))
    begun(folder, there).update(ended=True)
    before = {name: path.read_bytes() for name, path in files_of(folder)}
    shutil.rmtree(folder)
    mirror = Mirror(folder, there, US, token="")
    mirror.begin_anew(manifest(there), quiet)
    assert {name: path.read_bytes() for name, path in files_of(folder)} == before
    assert (folder / "ledger.jsonl").stat().st_mtime_ns == 1_234_567_891
    assert not (folder / "checkpoints" / "storage.json").exists(), "it is what says that the folder is whole"
    assert (mirror.token, manifest(there).working) == (manifest(there).token, False)
    assert mirror.token != "t"


def test_only_what_has_changed_is_copied_again_also_by_the_next_command(
    folder: Path, there: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(folder, there).update(ended=True)
    written: list[str] = []
    write = CheckpointFolder.write
    monkeypatch.setattr(
        CheckpointFolder, "write", lambda self, name, source: written.append(name) or write(self, name, source)
    )
    mirror = begun(folder, there)
    with (folder / "ledger.jsonl").open("a") as file:
        file.write("{}\n")
    (folder / "trajectories/rl-00001.parquet").unlink()
    mirror.update()
    assert written == [FILE, "run/ledger.jsonl", FILE]
    assert sorted(manifest(there).files) == [name for name in COPIED if "parquet" not in name]


def test_a_database_is_copied_whole_while_it_is_written_to(folder: Path, there: CheckpointFolder) -> None:
    ledger = Ledger(folder / "teachers" / "replies")
    mirror = begun(folder, there)
    for n, long in enumerate(("", "x" * 100_000)):
        ledger.put(f"k{n}", {"reply": n, "long": long})
        mirror.update()
    shutil.rmtree(folder)
    Mirror(folder, there, US, token="").begin_anew(manifest(there), quiet)
    again = Ledger(folder / "teachers" / "replies")
    assert [again.get(f"k{n}") for n in range(2)] == [{"reply": n, "long": "x" * 100_000 * n} for n in range(2)]
    with closing(sqlite3.connect(folder / "teachers" / "replies" / "cache.db")) as database:
        assert database.execute("pragma integrity_check").fetchone() == ("ok",)


@pytest.mark.parametrize("name", ["ledger.jsonl", "teachers/replies/cache.db"])
def test_a_file_that_goes_while_it_is_copied_is_left_out(
    name: str, folder: Path, there: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger(folder / "teachers" / "replies").put("k", 1)
    state = module._state

    def gone(path: Path) -> tuple[int, int]:
        found = state(path)
        if path == folder / name:
            path.unlink()
        return found

    monkeypatch.setattr(module, "_state", gone)
    begun(folder, there).update()
    found = manifest(there).files
    assert name not in found
    assert "config.yaml" in found


def test_a_folder_that_somebody_removes_leaves_its_copy_whole(folder: Path, there: CheckpointFolder) -> None:
    mirror = begun(folder, there)
    mirror.update()
    shutil.rmtree(folder)
    mirror.update(ended=True)
    assert sorted(manifest(there).files) == COPIED


def test_a_folder_that_is_behind_is_refused(folder: Path, there: CheckpointFolder, tmp_path: Path) -> None:
    begun(folder, there).update(ended=True)
    mirror = Mirror(tmp_path / "elsewhere" / "demo", there, ELSEWHERE, token="")
    mirror.begin_anew(manifest(there), quiet)
    mirror.update(ended=True)
    with pytest.raises(UserError, match=f"{folder} is behind {there.path}, where process 7 on other since .* went on"):
        begun(folder, there)


def test_a_run_that_is_taken_over_is_copied_no_more(folder: Path, there: CheckpointFolder, tmp_path: Path) -> None:
    mirror = begun(folder, there)
    mirror.update()
    other = Mirror(tmp_path / "elsewhere" / "demo", there, ELSEWHERE, token="")
    other.begin_anew(replace(manifest(there), working=False), quiet)
    with pytest.raises(UserError, match=f"{there.path} was taken over by process 7 on other"):
        mirror.update()


def test_a_process_of_this_host_holds_the_run_while_it_runs(folder: Path, there: CheckpointFolder) -> None:
    parent = Holder(US.host, os.getppid(), US.since, psutil.Process(os.getppid()).create_time())
    begun(folder, there, us=parent)
    with pytest.raises(UserError, match=f"{there.path} is in use by process {os.getppid()} on "):
        begun(folder, there)
    Path(there.of(FILE)).write_text(replace(manifest(there), holder=replace(parent, started=1.0)).text())
    begun(folder, there)


@pytest.mark.parametrize("alive", [False, True])
def test_a_process_of_another_host_is_watched(
    alive: bool, folder: Path, there: CheckpointFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LAPSE_S", 0.3)
    monkeypatch.setattr(module, "LOOK_S", 0.1)
    other = begun(folder, there, us=ELSEWHERE)
    said: list[str] = []

    @contextmanager
    def waiting(doing: str) -> Iterator[None]:
        said.append(doing)
        if alive:
            other.update()
        yield

    mirror = Mirror(folder, there, US, "t")
    if alive:
        with pytest.raises(UserError, match="is in use by process 7 on other since 2026-11-23 00:12:14; end it"):
            mirror.begin(waiting, new=False)
    else:
        mirror.begin(waiting, new=False)
        assert manifest(there).holder == US
    assert said == [f"looking whether {ELSEWHERE} still works on {there.path}"]


def test_another_folder_of_this_host_with_the_same_name_is_refused(
    folder: Path, there: CheckpointFolder, tmp_path: Path
) -> None:
    begun(folder, there).update(ended=True)
    mirror = Mirror(tmp_path / "other" / "demo", there, US, token="")
    with pytest.raises(
        UserError, match=f"{there.path} belongs to the run in {folder}: choose another name for run_dir"
    ):
        mirror.begin_anew(manifest(there), quiet)
    folder.rename(tmp_path / "away")
    mirror.begin_anew(manifest(there), quiet)


def test_a_new_run_takes_no_folder_with_files_of_something_else(folder: Path, there: CheckpointFolder) -> None:
    Path(there.of("rl/checkpoint_1")).mkdir(parents=True)
    with pytest.raises(UserError, match=f"{there.path} has files of no run"):
        Mirror(folder, there, US, "t").begin(quiet, new=True)
    Mirror(folder, there, US, "t").begin(quiet, new=False)


def test_a_storage_that_fails_is_named(folder: Path, there: CheckpointFolder) -> None:
    mirror = begun(folder, there)
    shutil.rmtree(there.path)
    Path(there.path).write_text("a file")
    with pytest.raises(InfrastructureError, match=f"{there.path} can't be read: "):
        mirror.update()


@pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({"files": {}, "holder": {}})])
def test_a_damaged_record_is_named(text: str, folder: Path, there: CheckpointFolder) -> None:
    Path(there.path).mkdir(parents=True)
    Path(there.of(FILE)).write_text(text)
    with pytest.raises(InfrastructureError, match=f"{there.of(FILE)} is damaged: "):
        begun(folder, there)
