"""The rules that most kinds of teams share: solvers call tools until they answer, and a judge scores their work.

solver -> call -> tool -> the same solver -> .. -> answer -> `after`
judge  -> score -> `judged`
other  -> reply -> `after`

A reply that its role may not give ends the line.
"""

from abc import abstractmethod
from typing import ClassVar

from coa.agent.grammar import ANSWER, Span, render
from coa.teams.router import CallTool, Move, Next, Over, Speak, after_solver, score_in
from coa.teams.run import TeamRun
from coa.teams.transcript import AgentStep, Ending


class SolvingRun(TeamRun):
    """A run of solvers, and perhaps of a judge and of other roles."""

    solvers: ClassVar[frozenset[str]]
    """Roles that may call tools, and answer."""
    judge: ClassVar[str] = ""
    """The role whose replies end with a score, if there is one."""
    any_tags = True

    @abstractmethod
    def after(self, move: Speak, text: str) -> tuple[Move, ...]:
        """The moves that follow a solver's answer, or the reply of a role that is neither solver nor judge."""
        ...

    def judged(self, line: int, score: int) -> tuple[Move, ...]:
        """The moves that follow the judge's score, 1 to 4."""
        raise NotImplementedError

    def fits_otherwise(self, move: Speak, reply: str) -> bool:
        """Whether a role that is neither solver nor judge may give this reply."""
        return False

    def fits(self, move: Speak, reply: str) -> bool:
        if move.agent == self.judge:
            return self._score(reply) is not None
        if move.agent not in self.solvers:
            return self.fits_otherwise(move, reply)
        following = self._following(move, reply)
        return not isinstance(following, Over) or following.ending is Ending.ANSWERED

    def follow(self, move: Move, text: str) -> tuple[Move, ...]:
        if isinstance(move, CallTool):
            return (Speak(self._caller(move.line), move.line),)
        if not self.fits(move, text):
            return self.give_up(move.line, Ending.MALFORMED)
        if move.agent == self.judge:
            score = self._score(text)
            assert score is not None
            return self.judged(move.line, score)
        following = self._following(move, text) if move.agent in self.solvers else None
        return (following,) if isinstance(following, Move) else self.after(move, text)

    def settle(self) -> tuple[Move, ...]:
        """Ends the run with the last answer of its first line."""
        if self.lines[0].said[-1].tag != ANSWER:
            self.announce(0, render((Span(ANSWER, self.answer_on(0)),)))
        self.ending = Ending.ANSWERED
        return ()

    def _score(self, reply: str) -> int | None:
        return score_in(self.team.brief(self.judge), self.profile, reply)

    def _following(self, move: Speak, reply: str) -> Next:
        return after_solver(self.team.brief(move.agent), self.profile, move.line, reply)

    def _caller(self, line: int) -> str:
        """The agent whose call is the last one on a line."""
        return next(one.agent for one in reversed(self.steps) if isinstance(one, AgentStep) and one.line == line)
