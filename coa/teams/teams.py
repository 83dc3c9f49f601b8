"""Configurations of teams: their members, tools and models, and the rules by which they work.

planner   a planner leads workers, a critic and a verifier, after OAgents (arXiv 2506.15741)
debate    several agents answer, judge each other, revise, and vote, after AgentArk (arXiv 2602.03955)
refine    one agent answers, one verifies, one refines, after MALT (arXiv 2412.01928)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from annotated_types import Ge

from coa.agent.grammar import Profile
from coa.agent.profiles import profile as find_profile
from coa.errors import UserError
from coa.teams.roles import (
    CRITIC,
    DEBATER,
    GENERATOR,
    OPPONENT,
    PLANNER,
    REFINER,
    ROLES,
    SOLVERS,
    THINKER,
    VERIFIER,
    worker_of,
)
from coa.teams.transcript import Brief

EXPERTS = ""
"""Name of the model of roles that the world's scripted experts play."""


class Rules(StrEnum):
    """The rules of a team: which role may speak when, and when a run is over."""

    PLANNER = "planner"
    DEBATE = "debate"
    REFINE = "refine"


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

    rules: Rules = Rules.PLANNER
    """How the team works: planner (one agent plans, others work and check), debate (several answers, critiques, a vote)
    or refine (an answer is checked and improved)."""
    model: str = EXPERTS
    """Name under `models` of the language model for every role that names none; "" lets the world's scripted experts
    play."""
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
    """debate: rounds of critique and revision before the vote. refine: how often an answer may be improved."""
    max_steps: int = 40
    """Maximum steps of agents and tools in a run (in a debate, per debater); a run that needs more counts as out of
    steps."""
    corrections: int = 1
    """Maximum number of times that a language model is asked again if its reply does not have the form that its role
    requires."""

    def __post_init__(self) -> None:
        if unknown := set(self.roles) - set(ROLES):
            raise ValueError(f"roles: no role {min(unknown)!r}; there are {', '.join(ROLES)}")

    def role(self, name: str) -> RoleConfig:
        return self.roles.get(name, RoleConfig())

    def brief(self, name: str) -> Brief:
        role = self.role(name)
        return Brief(name, role.duty, tuple(role.tools))

    def model_of(self, name: str) -> str:
        model = self.role(name).model
        return self.model if model is None else model


RULES_WITH = {
    "thinker": {Rules.PLANNER},
    "planning_interval": {Rules.PLANNER},
    "debaters": {Rules.DEBATE},
    "rounds": {Rules.DEBATE, Rules.REFINE},
}
"""The settings that not all rules read, and the rules that do."""


def members(team: TeamConfig, profile: Profile) -> tuple[str, ...]:
    """The roles that may be asked in runs of a profile."""
    match team.rules:
        case Rules.DEBATE:
            return (DEBATER, OPPONENT)
        case Rules.REFINE:
            return (GENERATOR, VERIFIER, REFINER)
        case Rules.PLANNER:
            verifier = (VERIFIER,) if any(tag.name == "suggested_answer" for tag in profile.tags) else ()
            return (PLANNER, worker_of(profile), CRITIC, *verifier, *((THINKER,) if team.thinker else ()))


def plays_free(team: TeamConfig) -> bool:
    """Whether scripted experts play every role."""
    return not team.model and not any(role.model for role in team.roles.values())


def check_team(team: TeamConfig, models: Mapping[str, object], profiles: set[str]) -> None:
    """Raises UserError for a team that names unknown models, tools or roles, or sets what its rules do not read."""
    standard = TeamConfig()
    for name, rules in RULES_WITH.items():
        if team.rules not in rules and getattr(team, name) != getattr(standard, name):
            others = " or ".join(sorted(rules))
            raise UserError(
                f"team.{name} has no effect with team.rules={team.rules}; it is a setting of team.rules={others}"
            )
    asked = {role for name in profiles for role in members(team, find_profile(name))}
    if idle := set(team.roles) - asked:
        raise UserError(f"team.roles.{min(idle)}: a {team.rules} team does not use this role for these profiles")
    for role in sorted(asked):
        model = team.model_of(role)
        if model and model not in models:
            known = ", ".join(sorted(models)) or "none"
            raise UserError(f"team: no model {model!r} for the {role}; `models` has {known}")
        tools = {tag.name for name in profiles for tag in find_profile(name).tools}
        named = team.role(role).tools
        if named and role not in (*SOLVERS, *(worker_of(find_profile(name)) for name in profiles)):
            raise UserError(f"team.roles.{role}.tools: this role calls no tools")
        if unknown := set(named) - tools:
            raise UserError(f"team.roles.{role}.tools: no tool {min(unknown)!r} in {', '.join(sorted(profiles))}")
        for name in sorted(profiles if named else ()):
            mine = {tag.name for tag in find_profile(name).tools}
            if mine and role in members(team, find_profile(name)) and not mine & set(named):
                raise UserError(f"team.roles.{role}.tools: none of them is a tool of {name}")
