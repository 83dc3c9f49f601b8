"""Every command that the documents show is run by a test, or needs what a test has not."""

import shlex

import pytest

from tests.project.test_docs import COMMANDS, ROOT
from tests.support.documented import ELSEWHERE, HERE, NEEDS, homes


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_one_home(command: str) -> None:
    assert len(homes(command)) == 1, "tests/support/documented.py says where commands are run"


def test_no_home_is_empty() -> None:
    lived_in = {home for command in COMMANDS for home in homes(command)}
    assert {*HERE, *ELSEWHERE, *NEEDS} - lived_in == set()


@pytest.mark.parametrize("name", sorted(set(ELSEWHERE.values())))
def test_a_home_is_there(name: str) -> None:
    assert (ROOT / name).exists()


def test_commands_are_read_as_a_shell_reads_them() -> None:
    asked = next(command for command in COMMANDS if command.startswith("coa ask"))
    assert shlex.split(asked)[-1] == "Who is the current owner of Vexon Labs ?"
