"""The kinds of teams, by the name that `team.rules` gives: one file each, which brings its rules and its own roles.

planner   a planner leads workers, a critic and a verifier, after OAgents (arXiv 2506.15741)
debate    several agents answer, judge each other, revise, and vote, after AgentArk (arXiv 2602.03955)
refine    one agent answers, one verifies, one refines, after MALT (arXiv 2412.01928)
"""

from collections.abc import Mapping

from coa.agent.grammar import Profile
from coa.agent.profiles import profile as find_profile
from coa.errors import UserError
from coa.extensions import load_extensions
from coa.registry import Registry
from coa.teams.debate import DebateRun
from coa.teams.planner import PlannerRun
from coa.teams.refine import RefineRun
from coa.teams.roles import ROLES, worker_of
from coa.teams.run import Assignment, TeamRun
from coa.teams.teams import TeamConfig

KINDS: Registry[type[TeamRun]] = Registry(
    "kind of team", {kind.name: kind for kind in (PlannerRun, DebateRun, RefineRun)}
)


def register(kind: type[TeamRun]) -> None:
    """Registers a kind of team and its own roles; raises ValueError for a name that another one has."""
    KINDS.register(kind.name, kind)
    for role in kind.own_roles:
        ROLES.register(role.name, role)


def kind_of(team: TeamConfig) -> type[TeamRun]:
    """Raises UserError for an unknown kind."""
    load_extensions()
    return KINDS.find(team.rules)


def start(assignment: Assignment, team: TeamConfig, *, seed: int, layouts: tuple[str, ...]) -> TeamRun:
    """A new run of the team."""
    return kind_of(team)(assignment, team, seed=seed, layouts=layouts)


def members(team: TeamConfig, profile: Profile) -> tuple[str, ...]:
    """The roles that may be asked in runs of a profile."""
    return kind_of(team).members(team, profile)


def check_kind(team: TeamConfig) -> None:
    """Raises UserError for an unknown kind of team, or an unknown role."""
    kind_of(team)
    if unknown := set(team.roles) - set(ROLES):
        raise UserError(f"team.roles: no role {min(unknown)!r}; there are {', '.join(ROLES)}")


def check_team(team: TeamConfig, models: Mapping[str, object], profiles: set[str]) -> None:
    """Raises UserError for a team that names unknown models or tools, or sets what its kind does not read."""
    kind, standard = kind_of(team), TeamConfig()
    for name in sorted({name for other in KINDS.values() for name in other.settings} - kind.settings):
        if getattr(team, name) != getattr(standard, name):
            others = " or ".join(sorted(other.name for other in KINDS.values() if name in other.settings))
            raise UserError(
                f"team.{name} has no effect with team.rules={team.rules}; it is a setting of team.rules={others}"
            )
    asked = {role for name in profiles for role in members(team, find_profile(name))}
    if idle := set(team.roles) - asked:
        raise UserError(f"team.roles.{min(idle)}: a {team.rules} team does not use this role for these profiles")
    for role in sorted(asked):
        _check_role(team, role, models, profiles)


def _check_role(team: TeamConfig, role: str, models: Mapping[str, object], profiles: set[str]) -> None:
    model = team.model_of(role)
    if model and model not in models:
        known = ", ".join(sorted(models)) or "none"
        raise UserError(f"team: no model {model!r} for the {role}; `models` has {known}")
    tools = {tag.name for name in profiles for tag in find_profile(name).tools}
    named = team.role(role).tools
    if named and not ROLES[role].solves and role not in (worker_of(find_profile(name)) for name in profiles):
        raise UserError(f"team.roles.{role}.tools: this role calls no tools")
    if unknown := set(named) - tools:
        raise UserError(f"team.roles.{role}.tools: no tool {min(unknown)!r} in {', '.join(sorted(profiles))}")
    for name in sorted(profiles if named else ()):
        mine = {tag.name for tag in find_profile(name).tools}
        if mine and role in members(team, find_profile(name)) and not mine & set(named):
            raise UserError(f"team.roles.{role}.tools: none of them is a tool of {name}")
