"""The rules of a debate: several agents answer, each on its own line, judge each other, revise, and vote.

    line 0   debater -> answer |  opponent (1) -> debater -> answer |
    line 1   debater -> answer |  opponent (2) -> debater -> answer |  vote -> over
    line 2   debater -> answer |  opponent (0) -> debater -> answer |
                               '---------- once a round ------------'

A phase ends when every line has finished it. A line that is malformed or out of steps drops out; the run fails with it
only if no other line is left. The vote compares answers that are spelt in one way; in a tie the earliest answer wins.
Among the lines that agree, the first that changed its mind is the winner (AgentArk prefers those). The others are
demonstrations too (`coa.distill.filters`).
"""

from collections import Counter

from coa.agent.grammar import ANSWER, Profile
from coa.grading.votes import vote_of
from coa.teams.roles import DEBATER, OPPONENT
from coa.teams.router import Move, Speak, outcome
from coa.teams.solving import SolvingRun
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Ending

UNANIMOUS, MAJORITY, SPLIT = 4, 3, 2
"""Scores that state the outcome of a vote."""


class DebateRun(SolvingRun):
    """A run of a debate."""

    name = "debate"
    settings = frozenset({"debaters", "rounds"})
    solvers = frozenset({DEBATER})
    judge = OPPONENT

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (DEBATER, OPPONENT)

    @classmethod
    def lines_of(cls, team: TeamConfig) -> int:
        return team.debaters

    def begin(self) -> tuple[Move, ...]:
        self._alive = list(range(len(self.lines)))
        self._rounds = 0
        self._judging = False
        return tuple(Speak(DEBATER, line) for line in self._alive)

    def after(self, move: Speak, text: str) -> tuple[Move, ...]:
        return self._next_phase()

    def judged(self, line: int, score: int) -> tuple[Move, ...]:
        return self._next_phase()

    def give_up(self, line: int, ending: Ending) -> tuple[Move, ...]:
        self._alive.remove(line)
        self.moves = tuple(move for move in self.moves if move.line != line)
        if not self._alive:
            self.ending = ending
            return ()
        return self._next_phase()

    def _next_phase(self) -> tuple[Move, ...]:
        """The moves of the next phase; none while another line has not finished."""
        if self.moves:
            return ()
        if self._judging:
            self._judging = False
            return tuple(Speak(DEBATER, line) for line in self._alive)
        if self._rounds < self.team.rounds:
            self._rounds += 1
            self._judging = True
            return tuple(Speak(OPPONENT, line) for line in self._alive)
        self._vote()
        return ()

    def _vote(self) -> None:
        answers = {line: self.answer_on(line) for line in self._alive}
        votes = {line: vote_of(answer, self.assignment.task.grader) for line, answer in answers.items()}
        [(chosen, count)] = Counter(votes.values()).most_common(1)
        agreed = [line for line in self._alive if votes[line] == chosen]
        self.winner = next(filter(self._turned, agreed), agreed[0])
        share = count / len(answers)
        score = UNANIMOUS if share == 1 else MAJORITY if share > 0.5 else SPLIT
        for line in agreed:
            self.announce(line, outcome(answers[line], score, f"{count} of {len(answers)} agree"))
        self.ending = Ending.ANSWERED

    def _turned(self, line: int) -> bool:
        """Whether the line's first answer was another one."""
        said = [span.text.strip() for span in self.lines[line].said if span.tag == ANSWER]
        first, *_, last = (vote_of(answer, self.assignment.task.grader) for answer in (said[0], *said))
        return first != last
