"""How answers are compared with the accepted ones: one grader per file, found by name.

Another grader is one file: a function like those here, and `register("mine", my_grader)`; `coa.extensions` says how
a module of your own gets loaded. From then on tasks may name it, and so may reward formulas (`coa.rewards`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from coa.errors import UserError
from coa.graders.judge import JUDGE, JudgeConfig, check_judge, grade_judged
from coa.graders.match import grade_exact, grade_f1, grade_first
from coa.graders.maths import MATHS, grade_maths
from coa.graders.programs import RUN_TEST, TESTS, ProgramsConfig, check_programs, grade_programs
from coa.tools.base import UseTool
from coa.types import Task


class Grader(Protocol):
    async def __call__(self, answer: str, task: Task, use_tool: UseTool) -> float:
        """From 0, wrong, to 1, right; raises InfrastructureError where that can't be found out."""
        ...


EXACT = "exact"

GRADERS: dict[str, Grader] = {
    EXACT: grade_exact,
    "exact_first": grade_first,
    "f1": grade_f1,
    MATHS: grade_maths,
    TESTS: grade_programs,
    JUDGE: grade_judged,
}

OF_OPEN_QUESTIONS = frozenset({EXACT, "exact_first", "f1", JUDGE})
"""Each may take another's place: what they accept is said in words. Compared as words, every program would be wrong,
and so would a right formula in another form."""

RIGHT = 1 - 1e-9
"""From this grade on an answer counts as correct."""

OF_PROFILE = {"web": JUDGE, "multi": JUDGE, "math": MATHS, "code": TESTS}
"""Graders of tasks that name none; those of other profiles are compared as words."""


def grader_of(profile: str, answers: Sequence[str]) -> str:
    """Of a task that names none. An answer of `code` that is no JSON object is a plain one, and no program's tests."""
    grader = OF_PROFILE.get(profile, EXACT)
    plain = grader == TESTS and any(not answer.lstrip().startswith("{") for answer in answers)
    return EXACT if plain else grader


def in_place_of(grader: str, asked: str | None) -> str:
    """The grader that a recipe asks for, where a task's own compares answers to open questions; None asks for none."""
    return grader if asked is None or grader not in OF_OPEN_QUESTIONS else asked


def register(name: str, grader: Grader) -> None:
    """Raises ValueError for a second grader of that name."""
    if GRADERS.setdefault(name, grader) is not grader:
        raise ValueError(f"there is a grader {name!r} already")


class Config(Protocol):
    """What graders need of the tools' configuration."""

    @property
    def judge(self) -> JudgeConfig: ...

    @property
    def programs(self) -> ProgramsConfig: ...


def check_graders(names: Iterable[str], config: Config, call_s: Callable[[str], float]) -> None:
    """Raises UserError for a grader that is not there, or whose tool is not set up to work.

    call_s: the executor's limit for a call of a tool, in seconds.
    """
    for name in sorted(names):
        if name not in GRADERS:
            raise UserError(f"no grader is called {name!r}; known are {', '.join(GRADERS)}")
        if name == JUDGE:
            check_judge(config.judge, call_s(JUDGE))
        if name == TESTS:
            check_programs(config.programs, call_s(RUN_TEST))
