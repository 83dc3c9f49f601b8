"""A model's `agent.json` (prompt format and limits) and `world.json` (world and profiles of its training)."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import Enum
from pathlib import Path

from coa.agent.episode import AgentConfig
from coa.agent.profiles import PROFILES
from coa.agent.profiles.multi import MULTI
from coa.config import from_plain
from coa.errors import UserError
from coa.grading.rewards import GRADE, RewardConfig
from coa.json_object import Json, JsonView
from coa.pretrained.folder import config_in
from coa.pretrained.reading import read_object
from coa.serving.config import ServingConfig
from coa.storage.files import write_atomically
from coa.tasks.worlds import World, find_world, settings_of
from jobs.recipe.checks import check_lookups
from jobs.recipe.schema import Recipe

AGENT_FILE, WORLD_FILE = "agent.json", "world.json"
OPTIONAL = "module", "profiles"
"""Keys of WORLD_FILE; the module is the one that registers the world."""
MODEL = "model"
"""Folder of the model in every run: a model in such a folder is named after its run."""


def write_agent(model: Path, agent: AgentConfig) -> None:
    write_atomically(model / AGENT_FILE, json.dumps(_of_model(asdict(agent)), indent=2, default=_plain))


def _of_model(agent: JsonView) -> Json:
    """Without the program: a model's folder may come from anywhere, and must not say what is run here."""
    return {name: value for name, value in agent.items() if name != "program"}


def _plain(value: object) -> str:
    """The text, as in a recipe, of a value that JSON can't represent."""
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{value!r} is not a value of a recipe")


def agent_of(model: Path, default: AgentConfig, overrides: Sequence[str] = ()) -> AgentConfig:
    """The `agent` section for the model: its `agent.json`, else the default, changed by the `agent.*` keys of
    `overrides`.

    Raises UserError for a folder that can't be read.
    """
    config_in(model)  # which raises an error that says what is there in its place
    path = model / AGENT_FILE
    return _changed(_of_model(read_object(path)), str(path), overrides) if path.exists() else default


@dataclass(frozen=True)
class _Section:
    agent: AgentConfig = field(default_factory=AgentConfig)


def _changed(agent: JsonView, where: str, overrides: Sequence[str]) -> AgentConfig:
    changes = [override for override in overrides if override.startswith("agent.")]
    return from_plain(_Section, {"agent": agent}, where, changes).agent


def caution_about_agent(config: Recipe, model: Path, overrides: Sequence[str]) -> str:
    """A warning if the recipe's section `agent` differs from the model's `agent.json`; else empty."""
    of_recipe = config.agent != _changed({}, "", overrides)
    if not of_recipe or agent_of(model, config.agent, overrides) == config.agent:
        return ""
    return (
        f"the recipe's section `agent` is not used: {model / AGENT_FILE} has the settings of the model's training "
        "(agent.KEY=VALUE on the command line changes them)"
    )


def as_trained(config: Recipe, model: Path, out: Path, overrides: Sequence[str]) -> Recipe:
    """The settings under which a model attempts tasks that are given separately from the recipe, with results in `out`.

    Prompt format, limits and world are those of the model's training, the recipe's own tasks are not read, and the
    reward is only the answer's grade.
    """
    config = in_its_world(config, model)
    return replace(
        config,
        run_dir=str(out),
        agent=agent_of(model, config.agent, overrides),
        tasks=replace(config.tasks, path=None),
        rl=replace(config.rl, reward=RewardConfig(formula=GRADE)),
    )


def write_world(model: Path, config: Recipe, profiles: Iterable[str] = ()) -> None:
    """Writes the world that the recipe names, whose pages are searched by tools that are not configured, and the
    profiles of the tasks that the model was trained on. Writes no file if there is neither."""
    module = find_world(config.tasks.world).__module__
    kept = {
        "world": config.tasks.world,
        "settings": asdict(config.world),
        "module": module,
        "profiles": sorted(profiles),
    }
    if kept["world"] is not None or kept["profiles"]:
        write_atomically(model / WORLD_FILE, json.dumps(kept, indent=2, default=_plain))


def profiles_in(model: Path) -> set[str]:
    """The profiles of the tasks that a model was trained on; empty if its folder does not record them. Raises UserError
    for a file that can't be read."""
    named: list[str] = _world_in(model).get("profiles", [])
    return {name for name in named if name in PROFILES}


def _world_in(model: Path) -> Json:
    path = model / WORLD_FILE
    if not path.is_file():
        return {"world": None}
    try:
        kept = json.loads(path.read_text())
        return {
            "world": kept["world"],
            "settings": kept["settings"],
            **{key: kept[key] for key in OPTIONAL if key in kept},
        }
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: can't be read: {error}") from error


def in_its_world(config: Recipe, model: Path) -> Recipe:
    """The recipe with the world that the model was trained in, unless it names one itself.

    Raises UserError for a file that can't be read, or a world that is not known here.
    """
    if config.tasks.world is not None or (kept := _world_in(model))["world"] is None:
        return config
    path, name, settings = model / WORLD_FILE, kept["world"], kept["settings"]
    try:
        kind = settings_of(name)
    except UserError as error:
        raise UserError(f"{path}: {error}; it is of COA_EXTENSIONS={kept.get('module', 'MODULE')}") from error
    return replace(config, tasks=replace(config.tasks, world=name), world=from_plain(kind, settings, str(path)))


def fill_in_names(config: Recipe, model: Path, world: World) -> ServingConfig:
    """The server's settings, with unset names and profiles filled in. world: the one that the model was trained in,
    whose profiles are used if the model's folder names none. With several profiles, the default is `multi`, which has
    every tool."""
    settings, trained = config.serving, profiles_in(model) or world.profiles()
    [only] = trained if len(trained) == 1 else {MULTI.name}
    profile = settings.profile or only
    profiles = settings.profiles or tuple(
        name for name in PROFILES if name == profile or _has_tools(config, world, name)
    )
    folder = model.resolve()
    name = folder.parent.name if folder.name == MODEL else folder.name
    keys = settings.keys.resolve() if settings.keys else None  # replicas have a working directory of their own
    follow = settings.follow.resolve() if settings.follow else None
    names = {"name": settings.name or name, "profile": profile, "profiles": profiles}
    return replace(settings, **names, keys=keys, follow=follow)


def _has_tools(config: Recipe, world: World, profile: str) -> bool:
    try:
        check_lookups(config, world, (profile,))
    except UserError:
        return False
    return True
