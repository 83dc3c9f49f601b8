"""In a model's folder: how the model is to be asked, as it was in training."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from enum import Enum
from pathlib import Path

from coa.config import from_plain
from coa.episode import AgentConfig
from coa.errors import UserError
from coa.files import write_atomically

AGENT_FILE = "agent.json"


def write_agent(model: Path, agent: AgentConfig) -> None:
    write_atomically(model / AGENT_FILE, json.dumps(asdict(agent), indent=2, default=_name))


def _name(member: Enum) -> str:
    return member.name


def agent_of(model: Path, default: AgentConfig, overrides: Sequence[str] = ()) -> AgentConfig:
    """How the model was asked in training, where its folder says so, with what `overrides` say of `agent.`; else the
    default.

    Raises UserError for a folder that can't be read, or a budget beyond the model's positions.
    """
    path = model / AGENT_FILE
    if not (model / "config.json").is_file():
        raise UserError(f"{model}: no model there (no config.json)")
    try:
        positions = json.loads((model / "config.json").read_text()).get("max_position_embeddings")
        said = [override.removeprefix("agent.") for override in overrides if override.startswith("agent.")]
        agent = from_plain(AgentConfig, json.loads(path.read_text()), str(path), said) if path.exists() else default
    except (json.JSONDecodeError, UnicodeDecodeError, AttributeError) as error:
        raise UserError(f"{model}: its config.json or {AGENT_FILE} can't be read: {error}") from error
    if positions is not None and agent.limits.max_tokens > positions:
        raise UserError(
            f"agent.limits.max_tokens={agent.limits.max_tokens} is more than the {positions} positions of {model}"
        )
    return agent
