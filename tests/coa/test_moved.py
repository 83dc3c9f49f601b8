"""An import of a module's old name says where it is now."""

import importlib
import subprocess
import sys

import pytest

from coa.moved import MOVED


def failure(statement: str) -> str:
    with pytest.raises(ImportError) as raised:
        exec(statement)
    return str(raised.value)


@pytest.mark.parametrize("old", MOVED)
def test_an_old_name_fails_with_the_new_one(old: str) -> None:
    assert MOVED[old] in failure(f"from {old} import anything")


@pytest.mark.parametrize("new", MOVED.values())
def test_each_new_name_is_there(new: str) -> None:
    assert importlib.import_module(new)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("import coa.credit", "no coa.credit: import coa.learning.advantages"),
        ("import coa.profiles.web", "no coa.profiles: import coa.agent.profiles"),
        ("import coa.graders.maths", "no coa.graders.maths: import coa.grading.maths"),
        ("from coa.graders import maths", "no coa.graders.maths: import coa.grading.maths"),
        ("from coa.graders import check", "no coa.graders.check: import coa.grading.graders.check"),
        ("from coa.models.limits import Limits", "no coa.models.limits: import coa.llm.limits"),
        ("from coa.tasks import load_tasks", "no coa.tasks.load_tasks: see coa.tasks.loading"),
        ("from coa.tools.sandbox import Sandbox", "no coa.tools.sandbox.Sandbox: see coa.tools.sandbox.sandbox"),
    ],
)
def test_what_an_old_module_or_package_had_is_named(statement: str, said: str) -> None:
    assert failure(statement) == said


def test_a_name_that_never_was_is_pythons_own_error() -> None:
    assert failure("import coa.nothing") == "No module named 'coa.nothing'"


def test_a_command_of_an_old_name_says_the_new_one() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "coa.tools.search_server"], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "no coa.tools.search_server: import coa.tools.web.server" in done.stderr.splitlines()[-1]
