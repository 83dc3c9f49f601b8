"""What libraries say of files that others wrote, as one line of ours."""

from logging import CRITICAL
from pathlib import Path

import pytest
from transformers.utils import logging

from coa.errors import UserError
from coa.pretrained.reading import LFS, LFS_BYTES, quiet, reading, require_content


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("bad"), "m: bad"),
        (Exception("\n  two \nthree"), "m: two"),
        (KeyError(), "m: KeyError"),
        (OSError("because:\nof this"), "m: because: of this"),
        (ValueError("a" * 200), f"m: {'a' * 200}"),
        (ValueError("a" * 201), f"m: {'a' * 197}..."),
        (UserError("n: as it is"), "n: as it is"),
    ],
)
def test_any_error_is_a_line_and_a_line_of_ours_stays(error: Exception, line: str) -> None:
    with pytest.raises(UserError) as caught, reading("m"):
        raise error
    assert str(caught.value) == line


def test_a_pointer_is_a_small_file(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(LFS.ljust(LFS_BYTES + 1))
    require_content(path)
    path.write_bytes(LFS.ljust(LFS_BYTES))
    with pytest.raises(UserError, match="a git-LFS pointer"):
        require_content(path)
    with pytest.raises(UserError, match=r"can't be read \(Is a directory\)$"):
        require_content(tmp_path)


@pytest.mark.parametrize("bars", [False, True])
def test_transformers_is_silent_for_a_while_and_then_as_before(bars: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    before = logging.get_verbosity()
    monkeypatch.setattr(logging, "_tqdm_active", bars)
    with quiet():
        assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (CRITICAL, False)
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == (before, bars)
