"""Whether the answer of a team run is right, found out before the filter looks at it."""

from coa.graders import GRADERS, RIGHT
from coa.teachers.transcript import Ending, Graded, Transcript
from coa.tools.base import UseTool


async def grade(transcript: Transcript, use_tool: UseTool) -> Graded:
    """Raises InfrastructureError where that can't be found out: such a run is no wrong answer."""
    task = transcript.task
    if transcript.ending is not Ending.ANSWERED:
        return Graded(transcript, False)
    if not task.answers:
        return Graded(transcript, None)
    return Graded(transcript, await GRADERS[task.grader](transcript.answer, task, use_tool) >= RIGHT)
