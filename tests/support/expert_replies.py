"""The scripted experts behind an endpoint:

python -m tests.support.endpoints --reply tests.support.expert_replies:reply
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from coa.agent.profiles import PROFILES
from coa.demo import World, WorldConfig
from coa.demo.experts import ExpertConfig, ScriptedMind
from coa.teams.roles import ROLES, system_prompt
from coa.teams.transcript import Message, Prompt


@cache
def _mind() -> ScriptedMind:
    return ScriptedMind(World(WorldConfig()), ExpertConfig())


@cache
def _asked(system: str) -> tuple[str, str] | None:
    """(role, profile) of a system message; None for any other message."""
    pairs = ((role, name) for name in PROFILES for role in ROLES)
    return next((pair for pair in pairs if system_prompt(*pair) == system), None)


def reply(messages: Sequence[Mapping[str, Any]], seed: int | None) -> str:
    if (asked := _asked(messages[0]["content"])) is None:
        return "yes"  # asked whether it is there
    role, profile = asked
    sent = tuple(Message(message["role"], message["content"]) for message in messages)
    return _mind().reply(Prompt(role=role, profile=profile, messages=sent, seed=seed or 0))
