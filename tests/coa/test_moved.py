"""An import of a module's old name says where it is now."""

import importlib
import subprocess
import sys

import pytest

from coa.moved import MOVED


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_fails_with_the_new_one(old: str) -> None:
    with pytest.raises(ImportError, match=f"^{old} is {MOVED[old]} now$"):
        importlib.import_module(old)


@pytest.mark.parametrize("new", MOVED.values())
def test_each_new_name_is_there(new: str) -> None:
    assert importlib.import_module(new)


def test_a_command_of_an_old_name_says_the_new_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coa.tools.search_server"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "coa.tools.search_server is coa.tools.web.server now" in done.stderr.splitlines()[-1]
