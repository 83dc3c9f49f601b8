"""Configurations of teams: their kind, and the models, tools and duties of their members."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from annotated_types import Ge, Le

from coa.teams.transcript import Brief

EXPERTS = ""
"""Name of the model of roles that the world's scripted experts play."""


@dataclass(frozen=True)
class RoleConfig:
    """Settings of one role of a team."""

    model: str | None = None
    """Name under `models` of this role's language model; None takes `team.model`."""
    duty: str = ""
    """Instructions that replace the role's own in the system prompt; "" keeps these."""
    tools: tuple[str, ...] = ()
    """Tools of the profile that this role may call; an empty list allows all."""


@dataclass(frozen=True)
class TeamConfig:
    """The team of agents that is the teacher."""

    rules: str = "planner"
    """How the team works: planner (one agent plans, others work and check), debate (several answers, critiques, a
    vote), refine (an answer is checked and improved), pyramid (one agent splits the question, others work on the
    parts), evolved (each generation tries another way, and answers are merged), or the name of a kind of your own."""
    learn_from: tuple[str, ...] = ()
    """Folders of earlier runs, or of their transcripts, of teams of several kinds. Each question then goes to the kind
    that is expected to give the most demonstrations for its tokens; empty uses the kind of `rules` for all."""
    model: str = EXPERTS
    """Name under `models` of the language model for every role that names none, and in the place of the policy where
    the agent is a program (`agent.program`); "" lets the world's scripted experts play."""
    roles: dict[str, RoleConfig] = field(default_factory=dict)
    """Settings of single roles, by the role's name."""
    thinker: bool = False
    """planner: whether a separate agent (the thinker), instead of the last tag, decides which role is next."""
    planning_interval: int = 0
    """planner: number of tool calls after which the planner makes a new plan, if the profile allows one; 0 for
    never."""
    debaters: Annotated[int, Ge(2)] = 3
    """debate: number of agents that answer."""
    rounds: int = 1
    """debate: rounds of critique and revision before the vote. refine: how often an answer may be improved. pyramid:
    the same for each part. evolved: number of generations after the first answer."""
    depth: Annotated[int, Ge(1), Le(3)] = 1
    """pyramid: levels of agents that split questions."""
    max_steps: int = 40
    """Maximum steps of agents and tools in a run (in a debate and a pyramid, on each line of work); a run that needs
    more counts as out of steps."""
    corrections: int = 1
    """Maximum number of times that a language model is asked again if its reply does not have the form that its role
    requires."""

    PATHS: ClassVar = ("learn_from",)

    def role(self, name: str) -> RoleConfig:
        return self.roles.get(name, RoleConfig())

    def brief(self, name: str) -> Brief:
        role = self.role(name)
        return Brief(name, role.duty, tuple(role.tools))

    def model_of(self, name: str) -> str:
        model = self.role(name).model
        return self.model if model is None else model


def plays_free(team: TeamConfig) -> bool:
    """Whether scripted experts play every role."""
    return not team.model and not any(role.model for role in team.roles.values())
