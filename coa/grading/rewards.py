"""Rewards: a formula over named terms, by default `grade * form + overlong`.

    grade       the answer's grade by the task's own grader, 0 to 1; 0 without an answer
    form        1 for an answered chain in which each tag may follow the previous ones, else 0
    overlong    0 up to 7/8 of the response budget, then linear to -1 at the budget (DAPO, arXiv 2503.14476)
    exact, f1, math, tests, judge, ...    the answer's grade by that grader (`coa.grading.graders`), not the task's

The default is the published reward (arXiv 2508.13167, section 3.3). Only terms that the formula names are computed. A
formula has only sums, differences, products, signs, numbers and parentheses, so that a recipe can't run code.

A term of your own is one file, loaded as `coa.extensions` says; then `grade * form - 0.1 * calls` is a formula:

    from coa.grading.rewards import Played, register

    async def calls(played: Played) -> float:
        return len(played.trajectory.tool_calls)

    register("calls", calls)
"""

import ast
from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Protocol

from coa.grading.graders import GRADERS, RIGHT, grade_by, number
from coa.registry import Registry
from coa.tools.base import UseTool
from coa.types import Scored, Status, Task, Trajectory

LARGEST = 1e9
"""Maximum absolute value of a number in a formula."""

_OPERATORS = {ast.Add: float.__add__, ast.Sub: float.__sub__, ast.Mult: float.__mul__}


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


@dataclass(frozen=True, slots=True)
class Formula:
    """A formula that has been read."""

    text: str
    tree: ast.expr
    terms: tuple[str, ...]
    """The names in the formula, each once, in alphabetical order."""

    def value(self, values: Mapping[str, float]) -> float:
        """The value for these values of `terms`: parse_formula("a * b + 1", "ab").value({"a": 2, "b": 3}) == 7."""
        return _evaluate(self.tree, values)


def parse_formula(text: str, known: Collection[str]) -> Formula:
    """Reads a formula; raises ValueError, in one line, for an invalid formula or an unknown term."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        why = error.msg if isinstance(error, SyntaxError) else error
        raise ValueError(f"{text!r} is not a formula: {why}") from error
    for node in ast.walk(tree):
        _check_node(node, text)
    terms = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for term in sorted(terms - set(known)):
        nearest = get_close_matches(term, known, n=1, cutoff=0.0)[0]
        raise ValueError(
            f"{text!r}: unknown term {term}; the nearest known term is {nearest}, all are {', '.join(sorted(known))}"
        )
    return Formula(text, tree, tuple(sorted(terms)))


def _check_node(node: ast.AST, text: str) -> None:
    """Raises ValueError for a node that is not arithmetic."""
    match node:
        case ast.BinOp(op=ast.Add() | ast.Sub() | ast.Mult()) | ast.UnaryOp(op=ast.USub() | ast.UAdd()) | ast.Name():
            pass
        case ast.Constant(int() | float() as number) if not isinstance(number, bool) and abs(number) <= LARGEST:
            pass
        case ast.expr():
            what = ast.unparse(node)
            raise ValueError(f"{text!r}: {what} is not allowed; a formula has terms, numbers, +, -, * and brackets")


def _evaluate(node: ast.expr, values: Mapping[str, float]) -> float:
    match node:
        case ast.BinOp(left, op, right):
            return _OPERATORS[type(op)](_evaluate(left, values), _evaluate(right, values))
        case ast.UnaryOp(op, operand):
            return -_evaluate(operand, values) if isinstance(op, ast.USub) else _evaluate(operand, values)
        case ast.Name(name):
            return float(values[name])
        case ast.Constant(number) if isinstance(number, int | float):
            return float(number)
    raise AssertionError(node)


def formula_of(config: RewardConfig) -> Formula:
    """Reads the formula; raises ValueError for an invalid formula or an unknown term."""
    return parse_formula(config.formula, [GRADE, *TERMS, *GRADERS])


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
