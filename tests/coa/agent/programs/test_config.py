"""Programs that are not there are refused before anything starts."""

import sys
from pathlib import Path

import pytest

from coa.agent.programs.config import ProgramConfig, check_program
from coa.errors import UserError


def test_no_program_is_one_or_the_other() -> None:
    assert not ProgramConfig().is_set
    check_program(ProgramConfig())
    with pytest.raises(ValueError, match="command and function are both set"):
        ProgramConfig(command=("a",), function="a:b")


@pytest.mark.parametrize("name", ["agent", "agent:", ":run", ""])
def test_a_function_has_a_module_and_a_name(name: str) -> None:
    with pytest.raises(ValueError, match="expected MODULE:FUNCTION"):
        ProgramConfig(function=name)


def test_what_is_there_is_taken() -> None:
    for config in (ProgramConfig(command=(sys.executable,)), ProgramConfig(function="docs.examples.two_calls:run")):
        assert config.is_set
        check_program(config)


def test_a_module_is_looked_for_where_the_command_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "an_agent_of_a_test.py").write_text("raise ValueError('it is not run')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    check_program(ProgramConfig(function="an_agent_of_a_test:run"))


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (ProgramConfig(command=("no-such-program",)), "no program 'no-such-program' is found"),
        (ProgramConfig(function="no_such_module:run"), "no module 'no_such_module' is found here"),
        (ProgramConfig(function="no_such_package.agent:run"), "no_such_package.agent can't be imported"),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(config: ProgramConfig, problem: str) -> None:
    with pytest.raises(UserError, match=problem) as refused:
        check_program(config)
    assert "\n" not in str(refused.value)
