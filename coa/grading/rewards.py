"""Rewards: a formula over named terms, by default `grade * form + overlong`.

    grade       the answer's grade by the task's own grader, 0 to 1; 0 without an answer
    form        1 for an answered chain in which each tag may follow the previous ones, else 0
    overlong    0 up to 7/8 of the response budget, then linear to -1 at the budget (DAPO, arXiv 2503.14476)
    exact, f1, math, tests, judge, ...    the answer's grade by that grader (`coa.grading.graders`), not the task's

The default is the published reward (arXiv 2508.13167, section 3.3). Only terms that the formula names are computed.

A term of your own is one file, loaded as `coa.extensions` says; then `grade * form - 0.1 * calls` is a formula:

    from coa.grading.rewards import Played, register

    async def calls(played: Played) -> float:
        return len(played.trajectory.tool_calls)

    register("calls", calls)
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Protocol

from coa.grading.formula import Formula, parse
from coa.grading.graders import GRADERS, RIGHT, grade_by, number
from coa.registry import Registry
from coa.tools.base import UseTool
from coa.types import Scored, Status, Task, Trajectory


@dataclass(frozen=True)
class RewardConfig:
    """The reward of an episode."""

    formula: str = "grade * form + overlong"
    """Sums, differences and products of numbers and terms: `grade`, `form`, `overlong`, the names of graders, and
    registered rewards."""
    overlong_buffer: float = 0.125
    """Share of the response budget, at its end, over which the term `overlong` falls from 0 to -1."""

    def __post_init__(self) -> None:
        formula_of(self)


@dataclass(frozen=True, slots=True)
class Played:
    """The input of a reward term."""

    trajectory: Trajectory
    task: Task
    use_tool: UseTool
    config: RewardConfig
    budget: int
    """Maximum tokens of the episode without its prompt."""

    @property
    def answered(self) -> bool:
        return self.trajectory.status is Status.ANSWERED

    @property
    def well_formed(self) -> bool:
        return self.answered and self.trajectory.transitions_hold

    async def graded(self, grader: str) -> float:
        """The grade by this grader, 0 without an answer; raises as `grade_by`."""
        if not self.answered:
            return 0.0
        return await grade_by(grader, self.trajectory.answer, self.task, self.use_tool)


class Term(Protocol):
    def __call__(self, played: Played) -> Awaitable[float]:
        """The term's value, a finite number; raises InfrastructureError if it can't be computed, and the group is
        played again."""
        ...


async def form(played: Played) -> float:
    return float(played.well_formed)


async def overlong(played: Played) -> float:
    trajectory = played.trajectory
    length = len(trajectory.token_ids) - trajectory.prompt_length
    return overlong_fine(length, played.budget, played.config.overlong_buffer)


def overlong_fine(length: int, budget: int, buffer: float) -> float:
    """0 up to (1 - buffer) of the budget, then linear to -1 at the budget."""
    soft = budget * buffer
    if soft <= 0:
        return 0.0
    return -min(1.0, max(0.0, (length - (budget - soft)) / soft))


GRADE = "grade"
TERMS: Registry[Term] = Registry("term", {"form": form, "overlong": overlong})
"""All terms except `grade` and the graders."""


def register(name: str, term: Term) -> None:
    """Registers a term; raises ValueError if there is another term of that name."""
    if name == GRADE or name in GRADERS:
        raise ValueError(f"there is a term {name!r} already")
    TERMS.register(name, term)


def formula_of(config: RewardConfig) -> Formula:
    """Reads the formula; raises ValueError for an invalid formula or an unknown term."""
    return parse(config.formula, [GRADE, *TERMS, *GRADERS])


def graders_of(config: RewardConfig) -> set[str]:
    """The graders that the formula names."""
    return set(formula_of(config).terms) & GRADERS.keys()


async def score(trajectory: Trajectory, task: Task, config: RewardConfig, *, budget: int, use_tool: UseTool) -> Scored:
    """Grades and rewards an episode; raises InfrastructureError if a term can't be computed: an answer that was not
    graded has no reward. Raises UserError if a term or the reward is no finite number."""
    played = Played(trajectory, task, use_tool, config, budget)
    formula = formula_of(config)
    values = {term: await _value(term, played) for term in formula.terms}
    grade = values[GRADE] if GRADE in values else await played.graded(task.grader)
    return Scored(
        trajectory=trajectory,
        grade=grade,
        correct=grade >= RIGHT,
        well_formed=played.well_formed,
        reward=number(formula.value(values), f"the reward {formula.text!r} of {values}", task),
    )


async def _value(term: str, played: Played) -> float:
    if term in TERMS:
        return number(await TERMS[term](played), f"the reward's term {term}", played.task)
    return await played.graded(played.task.grader if term == GRADE else term)
