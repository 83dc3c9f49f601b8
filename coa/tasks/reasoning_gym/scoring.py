"""The grader `reasoning_gym`: the scorer of the task's own data set, partial scores included.

Some scorers evaluate an answer as Python or by SymPy, which would run whatever a policy writes: only literals or
formulas get through to these. All of them run in a child process (`coa.processes.LimitedChild`), since a formula such
as 9**9**9 keeps one busy forever. An answer at which a scorer fails, or for which it takes too long, is wrong; a scorer
that fails at the data set's own answer ends the run.
"""

import ast
import asyncio
import json
import math
import re
from collections.abc import Callable, Mapping
from functools import cache, lru_cache

from coa.errors import UserError
from coa.json_object import Json
from coa.processes import LimitedChild, limit_cpu, serve_limited
from coa.tasks.reasoning_gym.entries import Reference
from coa.tools.base import UseTool
from coa.types import Task

FORMULAS = frozenset(
    {
        *("intermediate_integration", "polynomial_multiplication", "simple_integration"),
        *("countdown", "puzzle24"),
    }
)
"""Data sets whose scorer has SymPy parse the answer, which evaluates it, and texts within it again."""
LITERALS = frozenset({"binary_matrix", "n_queens", "spiral_matrix", "string_insertion"})
"""Data sets whose scorer evaluates the answer as Python."""
FUNCTIONS = frozenset(
    {
        *("sin", "cos", "tan", "cot", "sec", "csc", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh"),
        *("atanh", "exp", "log", "ln", "sqrt", "abs", "Abs", "floor", "ceiling"),
    }
)
LIMIT_S = 10
"""Seconds of CPU time for one answer."""
MAKE_S = 50
"""Seconds of CPU time for the entry that it answers, which is made anew in the process that scores."""
MEMORY_BYTES = 4 << 30
LONGEST = 20_000
"""Characters of an answer; a longer one is wrong."""
_NO_NAMES = re.compile(r"[\d\s+\-*/^%().,!=<>|\[\]{}:;]*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z]|pi")
_UNREADABLE = (SyntaxError, ValueError, TypeError, RecursionError, MemoryError)
_OF_FORMULAS = (ast.Expression, ast.Load, ast.UnaryOp, ast.BinOp, ast.unaryop, ast.operator)


async def grade(answer: str, task: Task, use_tool: UseTool) -> float:
    """From 0 (wrong) to 1 (right). Raises UserError if the data set's scorer does not work, and InfrastructureError if
    it can't be asked."""
    if not answer.strip() or len(answer) > LONGEST:
        return 0.0
    too_slow = f"reasoning-gym takes more than {MAKE_S} s to make it again: set world.level lower"
    made = await _ask(task.metadata) or {"problem": too_slow}
    found = made if "problem" in made else await _ask(task.metadata, answer) or {"score": 0.0}
    if "problem" in found:
        raise UserError(f"task {task.id} can't be scored: {found['problem']}")
    return found["score"]


async def _ask(*request: str) -> Json | None:
    """The scorer's reply; None if it took too long, or crashed."""
    told = await asyncio.to_thread(_scorer().ask, json.dumps(request).encode())
    return None if told is None else json.loads(told)


def is_formula(answer: str) -> bool:
    """Whether a text has only numbers, operators, one-letter variables and known functions."""
    if _NO_NAMES.fullmatch(answer):
        return True
    try:
        tree = ast.parse(answer.strip(), mode="eval")
    except _UNREADABLE:
        return False
    return all(map(_is_of_formulas, ast.walk(tree)))


def _is_of_formulas(node: ast.AST) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float | complex)
        case ast.Call(func=function, keywords=keywords):
            return isinstance(function, ast.Name) and function.id in FUNCTIONS and not keywords
        case ast.Name(id=name):
            return name in FUNCTIONS or _VARIABLE.fullmatch(name) is not None
        case _:
            return isinstance(node, _OF_FORMULAS)


def is_literal(answer: str) -> bool:
    """Whether a text is a literal of Python, or no expression of it at all."""
    return all(_is_literal_if_parsed(text) for text in {answer, answer.strip(), answer.lstrip()})


def _is_literal_if_parsed(text: str) -> bool:
    try:
        ast.parse(text, mode="eval")
    except _UNREADABLE:
        return True
    try:
        ast.literal_eval(text)
    except _UNREADABLE:
        return False
    return True


CHECKS: Mapping[str, Callable[[str], bool]] = {
    **dict.fromkeys(FORMULAS, is_formula),
    **dict.fromkeys(LITERALS, is_literal),
}


def score(answer: str, reference: Reference, entry: Json) -> Json:
    """{"score": from 0 to 1}, or {"problem": why the data set's scorer does not work}."""
    instance = reference.instance()
    may_be_evaluated = CHECKS.get(reference.dataset)
    if may_be_evaluated is not None and answer != entry["answer"] and not may_be_evaluated(answer):
        return {"score": 0.0}

    def scored(text: str | None) -> float:
        found = float(instance.score_answer(text, entry))
        if math.isnan(found):
            raise ValueError("its score is NaN")
        return found

    try:
        return {"score": min(1.0, max(0.0, scored(answer)))}
    except Exception as error:  # of the package: a scorer may raise anything at an answer that it does not expect
        problem = f"{type(error).__name__}: {error}"
    try:
        scored(entry["answer"])
    except Exception:  # then it is not the answer's fault
        return {"problem": problem}
    return {"score": 0.0}


@lru_cache(maxsize=4096)
def _entry(metadata: str) -> Json:
    return Reference.from_json(metadata).entry()


@cache
def _scorer() -> LimitedChild:
    """This process's scorer."""
    return LimitedChild(__name__, "scores answers by reasoning-gym", LIMIT_S)


def _serve() -> None:
    import reasoning_gym  # noqa: F401  # takes seconds

    def answer(request: bytes) -> bytes:
        metadata, *text = json.loads(request)
        if text:
            return json.dumps(score(text[0], Reference.from_json(metadata), _entry(metadata))).encode()
        limit_cpu(MAKE_S)
        try:
            _entry(metadata)
        except Exception as error:  # of the package, or of a row of a file with other metadata
            return json.dumps({"problem": f"its metadata names no entry ({type(error).__name__}: {error})"}).encode()
        return json.dumps({"made": True}).encode()

    serve_limited(answer, MEMORY_BYTES)


if __name__ == "__main__":
    _serve()
