"""The kinds of teams, by the name that `team.rules` gives: one file each, which brings its rules and its own roles.

planner   a planner leads workers, a critic and a verifier, after OAgents (arXiv 2506.15741)
debate    several agents answer, judge each other, revise, and vote, after AgentArk (arXiv 2602.03955)
refine    one agent answers, one verifies, one refines, after MALT (arXiv 2412.01928)
pyramid   a head splits the question, leaves work, a judge checks each branch, after InfiAgent (arXiv 2509.22502)
evolved   each generation tries another way, and answers are merged, after EvoAgent (arXiv 2406.14228)
"""

from collections.abc import Mapping
from pathlib import Path

from coa.agent.grammar import Profile
from coa.agent.profiles import profile as find_profile
from coa.errors import UserError
from coa.extensions import load_extensions
from coa.registry import Registry
from coa.teams.debate import DebateRun
from coa.teams.evolved import EvolvedRun
from coa.teams.planner import PlannerRun
from coa.teams.pyramid import PyramidRun
from coa.teams.refine import RefineRun
from coa.teams.roles import ROLES, worker_of
from coa.teams.run import Assignment, TeamRun
from coa.teams.teams import TeamConfig

KINDS: Registry[type[TeamRun]] = Registry("kind of team")


def register(kind: type[TeamRun]) -> None:
    """Registers a kind of team and its own roles; raises ValueError for a name that another one has."""
    KINDS.register(kind.name, kind)
    for role in kind.own_roles:
        ROLES.register(role.name, role)


def kind_of(team: TeamConfig) -> type[TeamRun]:
    """Raises UserError for an unknown kind."""
    load_extensions()
    if (kind := KINDS.get(team.rules)) is None:
        raise UserError(f"team.rules: no kind of team {team.rules!r}; there are {', '.join(KINDS)}")
    return kind


def kinds_of(team: TeamConfig) -> tuple[type[TeamRun], ...]:
    """The kinds that its runs may be of. Raises UserError for an unknown kind, and for `learn_from` without runs of at
    least two kinds."""
    if not team.learn_from:
        return (kind_of(team),)
    from coa.teams.store import kinds_in, transcripts_at

    load_extensions()
    found: set[str] = set()
    for path in map(Path, team.learn_from):
        kinds = kinds_in(transcripts_at(path)) if path.exists() else set()
        if not kinds:
            raise UserError(f"team.learn_from: no transcripts at {path}")
        found |= kinds
    names = sorted(found & set(KINDS))
    if len(names) < 2:
        raise UserError(
            f"team.learn_from: runs of {', '.join(names) or 'no kind of team'} alone: expected runs of at least two of "
            f"{', '.join(KINDS)}"
        )
    return tuple(KINDS[name] for name in names)


def start(assignment: Assignment, team: TeamConfig, *, seed: int, layouts: tuple[str, ...]) -> TeamRun:
    """A new run of the team, of the kind of its rules."""
    return kind_of(team)(assignment, team, seed=seed, layouts=layouts)


def members(team: TeamConfig, profile: Profile) -> tuple[str, ...]:
    """The roles that may be asked in runs of a profile."""
    roles = (role for kind in kinds_of(team) for role in kind.members(team, profile))
    return tuple(dict.fromkeys(roles))


def check_kind(team: TeamConfig) -> None:
    """Raises UserError for an unknown kind of team, or an unknown role."""
    kind_of(team)
    if unknown := set(team.roles) - set(ROLES):
        raise UserError(f"team.roles: no role {min(unknown)!r}; there are {', '.join(ROLES)}")


def check_team(team: TeamConfig, models: Mapping[str, object], profiles: set[str]) -> None:
    """Raises UserError for a team that names unknown models or tools, or sets what its kind does not read."""
    kinds, standard = kinds_of(team), TeamConfig()
    if team.learn_from and team.rules != standard.rules:
        raise UserError("team.rules has no effect with team.learn_from, which chooses among the kinds of its runs")
    used = {name for kind in kinds for name in kind.settings}
    for name in sorted({name for other in KINDS.values() for name in other.settings} - used):
        if getattr(team, name) != getattr(standard, name):
            others = " or ".join(sorted(other.name for other in KINDS.values() if name in other.settings))
            these = f"kinds {', '.join(kind.name for kind in kinds)}" if team.learn_from else f"team.rules={team.rules}"
            raise UserError(f"team.{name} has no effect with {these}; it is a setting of team.rules={others}")
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


for _kind in (PlannerRun, DebateRun, RefineRun, PyramidRun, EvolvedRun):
    register(_kind)
