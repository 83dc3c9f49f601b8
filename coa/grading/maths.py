"""The grader of mathematics, which compares the content of an answer's last `\\boxed{}`, or else the whole answer; and
plain Math-Verify, by which published results were graded."""

import asyncio
from collections.abc import Sequence

from coa.grading.equivalence import comparer
from coa.tools.base import UseTool
from coa.types import Task

MATHS = "math"
"""Name of the grader."""


async def published_verdicts(answers: Sequence[str], task: Task) -> list[int]:
    """1 for each answer that plain Math-Verify accepts, as published evaluations compare, else 0; raises
    InfrastructureError if the comparison fails."""

    def compared() -> list[int]:
        return [int(comparer().equal(answer, task.answers, as_published=True)) for answer in answers]

    return await asyncio.to_thread(compared)


async def grade_maths(answer: str, task: Task, use_tool: UseTool) -> float:
    return float(await asyncio.to_thread(comparer().equal, answer, task.answers))
