"""Folders of a run that lead elsewhere are found fit, or refused in one line."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from coa.errors import UserError
from coa.storage.run_folders import REPLACED, WRITTEN, check_folders


def test_each_folder_of_a_run_may_be_a_link_to_another_disk(tmp_path: Path) -> None:
    run, disk = tmp_path / "run", tmp_path / "disk"
    run.mkdir()
    check_folders(run)
    for name in (*WRITTEN, *REPLACED):
        (disk / name).mkdir(parents=True, exist_ok=True)
        if not (run / name).exists():
            (run / name).symlink_to(disk / name)
    check_folders(run)


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("data", lambda path: path.write_text("x"), "data is a file: a run needs a folder there"),
        (
            "checkpoints",
            lambda path: path.symlink_to("gone"),
            "checkpoints is a link to gone, which is no folder: a run",
        ),
        ("model", lambda path: path.symlink_to("gone/model"), "gone/model, which can't be written: there is no folder"),
        ("model", lambda path: path.write_text("x"), "model is a file: a folder is to be written there"),
    ],
)
def test_a_folder_that_can_not_be_written_is_named(
    tmp_path: Path, name: str, make: Callable[[Path], object], said: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(UserError, match=re.escape(said)):
        check_folders(tmp_path)
