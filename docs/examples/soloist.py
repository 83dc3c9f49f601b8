"""A kind of team of one's own, and its role: one agent works alone, with tools, up to an answer.

COA_EXTENSIONS=docs.examples.soloist coa distill --recipe tiny run_dir=runs/solo team.rules=soloist
"""

from coa.agent.grammar import ANSWER, Profile
from coa.teams.kinds import register
from coa.teams.roles import Role
from coa.teams.router import Move, Speak
from coa.teams.solving import SolvingRun
from coa.teams.teams import TeamConfig

SOLOIST = Role(
    "soloist",
    frozenset({"plan", "reflection", ANSWER}),
    "You work alone: begin with a plan, then call one tool at a time and wait for its observation, then answer.",
    solves=True,
)


class SoloistRun(SolvingRun):
    name = "soloist"
    own_roles = (SOLOIST,)
    solvers = frozenset({SOLOIST.name})

    @classmethod
    def members(cls, team: TeamConfig, profile: Profile) -> tuple[str, ...]:
        return (SOLOIST.name,)

    def begin(self) -> tuple[Move, ...]:
        return (Speak(SOLOIST.name),)

    def after(self, move: Speak, text: str) -> tuple[Move, ...]:
        return self.settle()


register(SoloistRun)
