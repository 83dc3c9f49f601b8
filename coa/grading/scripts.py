"""Tests that are a script: Python text with loops, tolerances and sets, which calls functions of the program.

    script ── sandbox ──> calls whose results it lacks ──> sandbox, program ──> their results ──┐
       ^                                                                                        |
       +------ run again, until it lacks none: it ended without an error, or with one ----------+

The script and the program never run in one process, so that a program can't find what is expected of it, or change what
compares it. Only plain values pass from one to the other, never objects.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from coa.grading import harnesses
from coa.grading.cases import Script, any_digits

ROUNDS = 20
"""Maximum number of runs of a script: one for all calls whose arguments don't depend on results, and so on."""


class Untestable(ValueError):
    """A script fails without any program."""


class ScriptRounds:
    """A script and the results that it has so far."""

    def __init__(self, script: Script, setup: str) -> None:
        self._script, self._setup = script, setup
        self._known: dict[str, Any] = {}
        self._lacking: Sequence[str] = ()

    def fail(self, why: str) -> None:
        """The script ended with an error; raises Untestable if nothing of a program can be its cause."""
        if not self._known:
            hint = "; packages are given by tools.sandbox.packages" if why.startswith("ModuleNotFoundError") else ""
            raise Untestable(f"its tests fail by themselves ({why}){hint}")

    def script(self) -> tuple[str, str]:
        """The next run of the script: its source, and its standard input."""
        asked = {
            "text": self._script.text,
            "setup": self._setup,
            "functions": self._script.functions,
            "known": self._known,
        }
        return harnesses.script(), _json(asked)

    def program(self, program: str) -> tuple[str, str]:
        """A run of the program for the calls that are lacking."""
        return harnesses.calls(program, self._setup), _json(self._lacking)

    def add_calls(self, printed: str) -> bool:
        """Takes what a run of the script printed; whether it lacks no result. Raises ValueError."""
        self._lacking = _read(printed)
        return not self._lacking

    def add_results(self, printed: str) -> None:
        """Takes what a run of the program printed. Raises ValueError if these are not the results of its calls."""
        self._known |= dict(zip(self._lacking, map(_outcome, _read(printed)), strict=True))


def _read(printed: str) -> list[Any]:
    _, mark, text = printed.rpartition(harnesses.MARK)
    with any_digits():
        found = json.loads(text) if mark else None
    if not isinstance(found, list):
        raise ValueError("it ended before its results were printed")
    return found


def _outcome(outcome: object) -> Mapping[str, object]:
    """An outcome that the program's run printed; raises ValueError for anything else."""
    match outcome:
        case {"value": value}:
            return {"value": value}
        case {"error": str(error), "text": str(text)}:
            return {"error": error, "text": text}
    raise ValueError("its results are not those of the calls")


def _json(value: object) -> str:
    with any_digits():
        return json.dumps(value)
