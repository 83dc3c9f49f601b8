"""The scripted experts behind an endpoint: `python -m tests.endpoints --reply tests.expert_replies:reply`."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from coa.profiles import PROFILES
from coa.teachers.experts import ExpertConfig, ScriptedMind
from coa.teachers.roles import ROLES, system_prompt
from coa.teachers.transcript import Message, Prompt
from coa.world import World, WorldConfig


@cache
def _mind() -> ScriptedMind:
    return ScriptedMind(World(WorldConfig()), ExpertConfig())


@cache
def _asked(system: str) -> tuple[str, str]:
    """(role, profile) of a system message."""
    return next((role, name) for name in PROFILES for role in ROLES if system_prompt(role, name) == system)


def reply(messages: Sequence[Mapping[str, Any]], seed: int | None) -> str:
    role, profile = _asked(messages[0]["content"])
    told = tuple(Message(message["role"], message["content"]) for message in messages)
    return _mind().reply(Prompt(role=role, profile=profile, messages=told, seed=seed or 0))
