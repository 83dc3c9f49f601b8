"""Graders: functions that compare an answer with the accepted ones, one in each file, found by name.

A new grader is one file: a function like those here, and `register("mine", my_grader)`; `coa.extensions` says how
a module of your own is loaded. Tasks and reward formulas (`coa.grading.rewards`) may then name it.
"""

from collections.abc import Callable, Iterable, Sequence
from math import isfinite
from typing import Protocol

from coa.errors import UserError
from coa.grading.judge import JUDGE, JudgeConfig, check_judge, grade_judged
from coa.grading.match import grade_exact, grade_f1, grade_first, grade_first_f1
from coa.grading.maths import MATHS, grade_maths, is_mathematical
from coa.grading.programs import RUN_TEST, TESTS, ProgramsConfig, check_programs, grade_programs
from coa.registry import Registry
from coa.tools.base import UseTool
from coa.types import Task
from coa.user_reward import USER_REWARD, grade_by_user, require_user_reward


class Grader(Protocol):
    async def __call__(self, answer: str, task: Task, use_tool: UseTool) -> float:
        """The grade, from 0 (wrong) to 1 (right); raises InfrastructureError if grading fails."""
        ...


EXACT = "exact"

GRADERS: Registry[Grader] = Registry(
    "grader",
    {
        EXACT: grade_exact,
        "exact_first": grade_first,
        "f1": grade_f1,
        "f1_first": grade_first_f1,
        MATHS: grade_maths,
        TESTS: grade_programs,
        JUDGE: grade_judged,
        USER_REWARD: grade_by_user,
    },
    lazy={"reasoning_gym": "coa.tasks.reasoning_gym.scoring:grade"},
)

OF_OPEN_QUESTIONS = frozenset({EXACT, "exact_first", "f1", "f1_first", JUDGE})
"""Graders of answers in words, which may replace one another. Other graders may not be replaced: compared as words,
every program would be wrong, and so would a right formula in another form."""

RIGHT = 1 - 1e-9
"""Minimum grade at which an answer counts as correct."""

OF_PROFILE = {"web": JUDGE, "multi": JUDGE, "math": MATHS, "code": TESTS}
"""Default grader by profile, for tasks without a grader; answers of other profiles are compared as words."""


def grader_of(profile: str, answers: Sequence[str]) -> str:
    """The default grader of a task. For the profile `code`, an answer that is not a JSON object is a plain answer, not
    tests: numbers, formulas and choices are compared as mathematics, other answers as words."""
    grader = OF_PROFILE.get(profile, EXACT)
    if grader != TESTS or all(answer.lstrip().startswith("{") for answer in answers):
        return grader
    return MATHS if all(map(is_mathematical, answers)) else EXACT


def in_place_of(grader: str, asked: str | None) -> str:
    """The grader to use: `asked` (from a recipe, None for none) if the task's own `grader` is for open questions, or if
    `asked` is the grader given by a program; else the task's own."""
    return asked if asked is not None and (grader in OF_OPEN_QUESTIONS or asked == USER_REWARD) else grader


def register(name: str, grader: Grader) -> None:
    """Registers a grader; raises ValueError if there is another grader of that name."""
    GRADERS.register(name, grader)


async def grade_by(name: str, answer: str, task: Task, use_tool: UseTool) -> float:
    """The grade by the grader of this name. Raises UserError if it is none, and InfrastructureError if grading
    fails."""
    found = number(await GRADERS[name](answer, task, use_tool), f"the grade by {name}", task)
    if not 0 <= found <= 1:
        raise UserError(f"the grade by {name} is {found:g} at task {task.id}, expected from 0 (wrong) to 1 (right)")
    return found


def number(value: object, what: str, task: Task) -> float:
    """The value as a float; raises UserError if it is no finite number, as code of a user may return."""
    try:
        found = float(value)  # pyright: ignore[reportArgumentType]
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:  # the last: a tensor of several elements
        raise UserError(f"{what} is {value!r} at task {task.id}, expected a number") from error
    if not isfinite(found):
        raise UserError(f"{what} is {found:g} at task {task.id}, expected a finite number")
    return found


class Config(Protocol):
    """The part of the tools' configuration that graders need."""

    @property
    def judge(self) -> JudgeConfig: ...

    @property
    def programs(self) -> ProgramsConfig: ...


def check_graders(names: Iterable[str], config: Config, call_s: Callable[[str], float]) -> None:
    """Raises UserError for an unknown grader, or a grader whose tool is not set up.

    call_s: the executor's limit for a call of a tool, in seconds.
    """
    for name in sorted(names):
        GRADERS.find(name)
        if name == JUDGE:
            check_judge(config.judge, call_s(JUDGE))
        if name == USER_REWARD:
            require_user_reward()
        if name == TESTS:
            check_programs(config.programs, call_s(RUN_TEST))
