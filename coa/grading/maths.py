"""The grader of mathematics, which compares the content of an answer's last `\\boxed{}`, or else the whole answer; and
plain Math-Verify, by which published results were graded."""

import asyncio
import re
from collections.abc import Sequence
from functools import partial

from coa.grading.equivalence import comparable, comparer
from coa.grading.latex import expression_of
from coa.grading.mathematics.choices import letter_of
from coa.grading.mathematics.units import is_known, without_unit
from coa.tools.base import UseTool
from coa.types import Task

MATHS = "math"
"""Name of the grader."""
_NO_WORDS = re.compile(r"\\[A-Za-z]+|(?P<word>[^\W\d_]{3})")
_FORMULA = re.compile(r"[\d=^<>\\]")


async def published_verdicts(answers: Sequence[str], task: Task) -> list[int]:
    """1 for each answer that plain Math-Verify accepts, as published evaluations compare, else 0; raises
    InfrastructureError if the comparison fails."""
    equal = partial(comparer().equal, accepted=task.answers, as_published=True)
    return await asyncio.to_thread(lambda: list(map(int, map(equal, answers))))


async def grade_maths(answer: str, task: Task, use_tool: UseTool) -> float:
    return float(await asyncio.to_thread(comparer().equal, answer, task.answers))


def is_mathematical(accepted: str) -> bool:
    """Whether an accepted answer is a number, a formula or the letter of a choice, rather than words or a date."""
    if letter_of(accepted) is not None:
        return True
    if not comparable(accepted):
        return False
    body, unit = without_unit(expression_of(accepted))
    words = any(found["word"] for found in _NO_WORDS.finditer(body))
    return bool(_FORMULA.search(body)) and not words and (unit is None or is_known(unit))
