"""The rules of generator, verifier and refiner: an answer is verified and refined until it is good or rounds are over.

generator -> answer -> verifier -> 3, 4: over
                ^          |
                +- refiner <- 1, 2 (while rounds are left; after them the last answer stands)
"""

from coa.agent.grammar import Profile
from coa.teams.roles import GENERATOR, REFINER, VERIFIER
from coa.teams.router import GOOD_ENOUGH, Move, Speak
from coa.teams.solving import SolvingRun
from coa.teams.teams import TeamConfig


class RefineRun(SolvingRun):
    """A run of generator, verifier and refiner."""

    name = "refine"
    settings = frozenset({"rounds"})
    solvers = frozenset({GENERATOR, REFINER})
    judge = VERIFIER

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (GENERATOR, VERIFIER, REFINER)

    def begin(self) -> tuple[Move, ...]:
        self._rounds = 0
        return (Speak(GENERATOR),)

    def after(self, move: Speak, text: str) -> tuple[Move, ...]:
        return (Speak(VERIFIER),)

    def judged(self, line: int, score: int) -> tuple[Move, ...]:
        if score >= GOOD_ENOUGH or self._rounds >= self.team.rounds:
            return self.settle()
        self._rounds += 1
        return (Speak(REFINER),)
