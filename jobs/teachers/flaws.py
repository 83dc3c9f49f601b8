"""Ends a distillation whose team runs all have the same flaw, before all of them are paid for.

A run is useful if the filter's rules would keep it. Until the first one, runs with each flaw are counted. A reply
without text is different: a model that has begun to send none is not waited for either, so such runs are counted since
the last useful one.
"""

from collections import Counter

from actors.teachers.team import Outcome
from coa.errors import EmptyCompletion, ReplyCutOff, UserError
from coa.teams.run import FailedRun
from coa.teams.transcript import AgentStep, Graded, Transcript

SILENT = {
    EmptyCompletion.__name__: "replies without text",
    ReplyCutOff.__name__: "replies that end before their first word",
}
"""Flaws of failed runs, by the type of the failure."""
SHOWS = 300
"""Maximum characters of a reply that an error shows."""


class Flaws:
    """Counts team runs by their flaw."""

    def __init__(self, most: int, *, useful: bool) -> None:
        """useful: whether an earlier command kept a run of this stage."""
        self.useful = useful
        """Whether a run of this stage was useful."""
        self.problem = ""
        """Why the stage has to end; empty as long as it may go on."""
        self.most = most
        """As `TeachingConfig.same_flaw`."""
        self._counts: Counter[str] = Counter()

    def take(self, outcome: Outcome, flaw: str | None) -> None:
        """flaw: why the filter's rules drop a graded run; None if they don't."""
        match outcome:
            case Graded() if flaw is None:
                self.useful, self.problem = True, ""
                self._counts.clear()
            case Graded(transcript=transcript, objection=objection) if flaw is not None:
                self._count(flaw, transcript.task.id, f"{last_reply(transcript)}{objection and f' ({objection})'}")
            case FailedRun(where=where, why=why, assignment=assignment) if where in SILENT:
                self._count(SILENT[where], assignment.task.id, why)

    def _count(self, flaw: str, task_id: str, example: str) -> None:
        self._counts[flaw] += 1
        count = self._counts[flaw]
        if self.most and count >= self.most and (not self.useful or flaw in SILENT.values()):
            since = "since the last useful one" if self.useful else "and none was useful"
            self.problem = (
                f"{count} team runs had the same flaw, {since}: {flaw}, such as at task {task_id}: {example[:SHOWS]}; "
                f"change the team or distill.filters, or set teaching.same_flaw, which is {self.most} (0: no limit)"
            )

    def check(self) -> None:
        """Raises UserError if the stage has to end."""
        if self.problem:
            raise UserError(self.problem)


def last_reply(transcript: Transcript) -> str:
    """The last text that an agent wrote, in one line, and the accepted answers if it is an answer."""
    said = [step for step in transcript.steps if isinstance(step, AgentStep)]
    if not said:
        return "no agent replied"
    accepted = f", accepted: {' or '.join(transcript.task.answers)[: SHOWS // 3]}" if transcript.answer else ""
    return f"the {said[-1].agent} replied {' '.join(said[-1].output.split())[: SHOWS // 2]!r}{accepted}"
