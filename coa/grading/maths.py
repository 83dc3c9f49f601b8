"""The grader of mathematics: Math-Verify compares what the last `\\boxed{}` of an answer holds, or all of the
answer."""

import asyncio

from coa.grading.equivalence import comparer
from coa.tools.base import UseTool
from coa.types import Task

MATHS = "math"
"""Name of the grader."""


async def grade_maths(answer: str, task: Task, use_tool: UseTool) -> float:
    return float(await asyncio.to_thread(comparer().equal, answer, task.answers))
