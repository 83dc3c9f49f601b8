"""Grades the answers of team runs, before the filter sees them."""

from coa.grading.graders import RIGHT, grade_by
from coa.teams.transcript import Ending, Graded, Transcript
from coa.tools.base import UseTool


async def grade(transcript: Transcript, use_tool: UseTool) -> Graded:
    """The run with its grade; raises InfrastructureError if it can't be graded, so that it does not count as wrong."""
    task = transcript.task
    if transcript.ending is not Ending.ANSWERED:
        return Graded(transcript, False)
    if not task.answers:
        return Graded(transcript, None)
    return Graded(transcript, await grade_by(task.grader, transcript.answer, task, use_tool) >= RIGHT)
