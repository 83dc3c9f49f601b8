"""A kind of team of one's own, and its role: one agent works alone, with tools, up to an answer.

COA_EXTENSIONS=docs.examples.soloist coa distill --recipe tiny run_dir=runs/solo team.rules=soloist
"""

from coa.agent.grammar import ANSWER, Profile
from coa.teams.kinds import register
from coa.teams.roles import Role
from coa.teams.router import MALFORMED, CallTool, Move, Next, Over, Speak, after_solver
from coa.teams.run import TeamRun
from coa.teams.teams import TeamConfig

SOLOIST = Role(
    "soloist",
    frozenset({"plan", "reflection", ANSWER}),
    "You work alone: begin with a plan, then call one tool at a time and wait for its observation, then answer.",
    solves=True,
)


class SoloistRun(TeamRun):
    name = "soloist"
    own_roles = (SOLOIST,)
    any_tags = True

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (SOLOIST.name,)

    def begin(self) -> tuple[Move, ...]:
        return (Speak(SOLOIST.name),)

    def fits(self, move: Speak, reply: str) -> bool:
        return self._after(reply) != MALFORMED

    def follow(self, move: Move, text: str) -> tuple[Move, ...]:
        if isinstance(move, CallTool):
            return (Speak(SOLOIST.name),)
        following = self._after(text)
        if isinstance(following, Over):
            self.ending = following.ending
            return ()
        return (following,)

    def _after(self, reply: str) -> Next:
        return after_solver(self.team.brief(SOLOIST.name), self.profile, 0, reply)


register(SoloistRun)
