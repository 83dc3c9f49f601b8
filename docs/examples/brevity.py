"""A reward of one's own, and a grader: both are found by name, in recipes and in task files.

COA_EXTENSIONS=docs.examples.brevity coa train --recipe tiny run_dir=runs/brief rl.reward.formula='grade - 0.02 * calls'
"""

from coa.grading import graders, rewards
from coa.grading.rewards import Played
from coa.tools.base import UseTool
from coa.types import Task


async def calls(played: Played) -> float:
    """How many tools an episode called."""
    return float(len(played.trajectory.tool_calls))


async def grade_close(answer: str, task: Task, use_tool: UseTool) -> float:
    """Whether a number is within one percent of an accepted one; a task says `"grader": "close"`."""
    try:
        given = float(answer)
    except ValueError:
        return 0.0
    return float(any(abs(given - float(gold)) <= abs(float(gold)) / 100 for gold in task.answers))


rewards.register("calls", calls)
graders.register("close", grade_close)
