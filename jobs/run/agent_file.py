"""In a model's folder: how the model is to be asked, and in which world, as it was in training."""

import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from enum import Enum
from pathlib import Path

from coa.agent.episode import AgentConfig
from coa.config import from_plain
from coa.errors import UserError
from coa.storage.files import write_atomically
from coa.tasks.worlds import settings_of
from jobs.recipe.schema import Recipe

AGENT_FILE, WORLD_FILE = "agent.json", "world.json"


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


def write_world(model: Path, config: Recipe) -> None:
    """The world that the recipe names, if it names one: tools that nothing else is set up for find its pages."""
    if config.tasks.world is not None:
        settings = asdict(config.world)
        write_atomically(model / WORLD_FILE, json.dumps({"world": config.tasks.world, "settings": settings}, indent=2))


def in_its_world(config: Recipe, model: Path) -> Recipe:
    """The recipe with the world that the model was trained in, unless it names one itself.

    Raises UserError for a file that can't be read, or a world that is not known here.
    """
    path = model / WORLD_FILE
    if config.tasks.world is not None or not path.is_file():
        return config
    try:
        kept = json.loads(path.read_text())
        name, settings = kept["world"], kept["settings"]
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
        raise UserError(f"{path}: can't be read: {error}") from error
    world = from_plain(settings_of(name), settings, str(path))
    return replace(config, tasks=replace(config.tasks, world=name), world=world)
