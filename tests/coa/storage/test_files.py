import errno
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from coa.errors import DiskFull, ReadOnlyDisk, UserError
from coa.storage.files import remove_partial, replacing, replacing_folder, room_at, write_atomically


def tree(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


def fail_halfway(path: Path) -> None:
    path.write_text("half")
    raise KeyError


def test_an_atomic_write_leaves_one_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a" / "x", "1")
    write_atomically(tmp_path / "a" / "x", "2")
    assert tree(tmp_path) == {"a/x": "2"}


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", "old")
    with pytest.raises(KeyError), replacing(tmp_path / "x") as part:
        fail_halfway(part)
    assert tree(tmp_path) == {"x": "old"}


def test_a_folder_appears_whole_in_the_place_of_the_old_one(tmp_path: Path) -> None:
    for text in ("old", "new"):
        with replacing_folder(tmp_path / "model") as part:
            (part / "deep").mkdir()
            (part / "deep" / f"{text}.txt").write_text(text)
            assert f"deep/{text}.txt" not in tree(tmp_path / "model")
    assert tree(tmp_path) == {"model/deep/new.txt": "new"}


def test_an_error_leaves_the_old_folder(tmp_path: Path) -> None:
    with replacing_folder(tmp_path / "model") as part:
        (part / "a").write_text("old")
    with pytest.raises(KeyError), replacing_folder(tmp_path / "model") as part:
        fail_halfway(part / "a")
    assert tree(tmp_path) == {"model/a": "old"}


def test_what_a_killed_process_left_of_a_folder_is_not_in_the_next(tmp_path: Path) -> None:
    killed = replacing_folder(tmp_path / "model")
    (killed.__enter__() / "left").write_text("x")
    with replacing_folder(tmp_path / "model") as part:
        (part / "a").write_text("1")
    assert tree(tmp_path) == {"model/a": "1"}


@pytest.mark.parametrize("there", [True, False], ids=["there", "not yet there"])
def test_a_link_stays_and_the_folder_that_it_leads_to_is_replaced(tmp_path: Path, there: bool) -> None:
    disk, model = tmp_path / "disk" / "run", tmp_path / "model"
    (disk if there else disk.parent).mkdir(parents=True)
    model.symlink_to(disk)
    for text in ("old", "new"):
        with replacing_folder(model) as part:
            assert part.parent == disk.parent, "on the disk that it is to be on"
            (part / f"{text}.txt").write_text(text)
    assert model.readlink() == disk
    assert tree(disk.parent) == {"run/new.txt": "new"}


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "a file": (lambda model: model.write_text("x"), "model is a file: a folder is to be written there"),
    "a link to a file": (
        lambda model: ((model.parent / "x").write_text("x"), model.symlink_to("x")),
        "x, which is a file: a folder is to be written there",
    ),
    "a link to nowhere": (
        lambda model: model.symlink_to("disk/run"),
        "disk/run, which can't be written: there is no folder ",
    ),
    "a link to a disk": (
        lambda model: model.symlink_to("/proc"),
        "model leads to /proc, which is a disk of its own and can't be replaced: make a link to a folder on that disk",
    ),
}


@pytest.mark.parametrize(("make", "said"), REFUSED.values(), ids=REFUSED)
def test_what_can_not_be_replaced_is_refused_before_anything_is_written(
    tmp_path: Path, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / "model")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UserError, match=re.escape(said)), replacing_folder(tmp_path / "model"):
        raise AssertionError
    assert sorted(tmp_path.iterdir()) == before


def test_the_old_folder_is_there_again_if_the_new_one_can_not_take_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomically(tmp_path / "model" / "a", "old")
    rename = Path.replace

    def refuse(self: Path, target: Path) -> Path:
        if self.name == ".model.partial":
            raise OSError(errno.EBUSY, "busy")
        return rename(self, target)

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="busy"), replacing_folder(tmp_path / "model") as part:
        (part / "a").write_text("new")
    assert tree(tmp_path) == {"model/a": "old"}


@pytest.mark.parametrize("replace", [replacing, replacing_folder])
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_an_error_of_its_own(tmp_path: Path, replace: object, number: int) -> None:
    with pytest.raises(DiskFull, match="x: no space left on the disk"), replace(tmp_path / "x"):  # pyright: ignore
        raise OSError(number, "full")
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_has_become_read_only_is_an_error_of_its_own(tmp_path: Path) -> None:
    with pytest.raises(ReadOnlyDisk, match="x: the disk has become read-only"), replacing(tmp_path / "x"):
        raise OSError(errno.EROFS, "read-only")


def test_what_a_library_makes_of_a_full_disk_is_known_by_where_it_came_from(tmp_path: Path) -> None:
    def write() -> None:
        try:
            raise OSError(errno.ENOSPC, "full")
        finally:
            raise RuntimeError("unexpected pos 64 vs 0")

    with pytest.raises(DiskFull, match="x: no space left on the disk"), room_at(tmp_path / "x"):
        write()
    with pytest.raises(RuntimeError, match="unexpected"), room_at(tmp_path / "x"):
        raise RuntimeError("unexpected")


def left_behind(folder: Path) -> None:
    """What a process leaves that is killed while it writes a file and a folder."""
    (folder / ".data.json.4711.partial").write_text("half")
    model = folder / "checkpoints" / ".model.partial"
    model.mkdir(parents=True)
    (model / "weights").write_text("half")


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    left_behind(tmp_path)
    (tmp_path / "notes.partial").write_text("a user's own")
    os.utime(tmp_path / ".data.json.4711.partial", (0, 0))
    for path in (tmp_path / "checkpoints" / ".model.partial" / "weights", tmp_path / "checkpoints" / ".model.partial"):
        os.utime(path, (0, 0))
    remove_partial(tmp_path)
    assert tree(tmp_path) == {"notes.partial": "a user's own"}


def test_what_may_still_be_written_stays(tmp_path: Path) -> None:
    left_behind(tmp_path)
    os.utime(tmp_path / "checkpoints" / ".model.partial", (0, 0))  # a file within is newer
    remove_partial(tmp_path)
    assert len(tree(tmp_path)) == 2
