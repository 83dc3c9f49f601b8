"""The rules of generator, verifier and refiner: an answer is verified and refined until it is good or rounds are over.

generator -> answer -> verifier -> 3, 4: over
                ^          |
                +- refiner <- 1, 2 (while rounds are left; after them the last answer stands)
"""

from coa.agent.grammar import ANSWER, Profile, Span, render
from coa.teams.roles import GENERATOR, REFINER, VERIFIER
from coa.teams.router import GOOD_ENOUGH, CallTool, Move, Over, Speak, after_solver, score_in
from coa.teams.run import TeamRun
from coa.teams.teams import TeamConfig
from coa.teams.transcript import Ending


class RefineRun(TeamRun):
    """A run of generator, verifier and refiner."""

    name = "refine"
    settings = frozenset({"rounds"})
    any_tags = True

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (GENERATOR, VERIFIER, REFINER)

    def begin(self) -> tuple[Move, ...]:
        self._solver = GENERATOR
        self._rounds = 0
        return (Speak(GENERATOR),)

    def fits(self, move: Speak, reply: str) -> bool:
        brief = self.team.brief(move.agent)
        if move.agent == VERIFIER:
            return score_in(brief, self.profile, reply) is not None
        following = after_solver(brief, self.profile, 0, reply)
        return not isinstance(following, Over) or following.ending is Ending.ANSWERED

    def follow(self, move: Move, text: str) -> tuple[Move, ...]:
        if isinstance(move, CallTool):
            return (Speak(self._solver),)
        if not self.fits(move, text):
            return self.give_up(0, Ending.MALFORMED)
        if move.agent != VERIFIER:
            following = after_solver(self.team.brief(move.agent), self.profile, 0, text)
            return (Speak(VERIFIER),) if isinstance(following, Over) else (following,)
        score = score_in(self.team.brief(VERIFIER), self.profile, text)
        assert score is not None
        if score >= GOOD_ENOUGH or self._rounds >= self.team.rounds:
            self.announce(0, render((Span(ANSWER, self.answer_on(0)),)))
            self.ending = Ending.ANSWERED
            return ()
        self._rounds += 1
        self._solver = REFINER
        return (Speak(REFINER),)
