"""What makes a recipe impossible to run or to resume, found before anything is written or started."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from actors.learner.sizes import hub_name
from actors.weights.transports import find_sender
from coa.agent.codec import Codec
from coa.agent.episode import Grammar
from coa.agent.profiles import profile as find_profile
from coa.config import dump
from coa.distill.dataset.shards import shard_paths
from coa.errors import UserError
from coa.grading.graders import TESTS, check_graders
from coa.grading.rewards import graders_of
from coa.grading.toolset import check_called, check_tools
from coa.llm.client import check_endpoint
from coa.reporting.wandb_sink import mode_of
from coa.tasks.worlds import World
from coa.teams.teams import EXPERTS, check_team
from coa.tools.sandbox.sandbox import require_bubblewrap
from coa.types import Task
from jobs.recipe.needs import graders_needed, roles_of
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of

FREE_TO_CHANGE = (
    "run_dir",
    "session.",
    "placement.",
    "pool.",
    "executor.",
    "teaching.",
    "distill.runs",
    "distill.retry_failed",
    "distill.most_failed",
    "distill.obedience.asks",
    "distill.obedience.schema",
    "evaluation.patience_s",
    "tools.judge.asks",
    "tools.judge.schema",
    "selection.",
    "rl.evaluate_",
    "wandb.",
)
"""Settings that a resumed run may change: they say where it runs, how much of it is made, and how it is asked for, not
what it is."""
FREE_OF_ENDPOINTS = re.compile(
    r"models\.[^.]+\.(endpoint\.(url|key_env|timeout_s|attempts|timeouts|pause_s|max_pause_s|max_retry_after_s"
    r"|concurrent|requests_per_minute|tokens_per_minute|max_tokens)|serve\.(host|port))"
)
"""The same of teachers' models: where, and how fast, they are asked; and the room that their replies have, since runs
fail where it is too small."""


def free_to_change(key: str) -> bool:
    return key.startswith(FREE_TO_CHANGE) or FREE_OF_ENDPOINTS.fullmatch(key) is not None


def check_run(config: Recipe) -> None:
    """Raises UserError, before anything is written, for a recipe that can't be run or resumed."""
    mode_of(config.wandb)
    require_bubblewrap(config.tools.sandbox)
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.named)
    check_counts(config)
    world = world_of(config)
    if mistake := world.mistake():
        raise UserError(mistake)
    profiles = world.profiles()
    check_team(config.team, config.models, profiles)
    check_experts(config, world)
    check_models(config)
    check_distill(config, world.team_runs if config.distill.runs is None else config.distill.runs)
    check_graders(graders_needed(config), config.tools, config.executor.limit_s)
    check_lookups(config, world, profiles)
    for key, path in (("model.path", config.model.path), ("rl.on_policy.teacher", config.rl.on_policy.teacher)):
        if path is not None and not hub_name(path) and not (Path(path) / "config.json").exists():
            raise UserError(f"{key} {path}: no config.json there")
    check_algorithm(config)
    on_policy, sampling = config.rl.on_policy, config.rl.sampling
    plainly = config.agent.grammar is Grammar.lenient and (sampling.temperature, sampling.top_p) == (1.0, 1.0)
    if on_policy.teacher is not None and not plainly:
        raise UserError(
            "rl.on_policy compares plain log-probs: it needs agent.grammar=lenient, and temperature and top_p of 1"
        )
    find_sender(config.rl.weights.transport)
    check_same(Path(config.run_dir) / "config.yaml", config)


def check_attempts(model: Path, tasks: Sequence[Task], config: Recipe) -> None:
    """Raises UserError where a model can't attempt tasks."""
    check_needs(tasks, config)
    Codec.load(model)
    check_counts(config)


def check_needs(tasks: Sequence[Task], config: Recipe) -> None:
    """Raises UserError where what tasks or tools need is not set up: a judge, a key, the sandbox for programs."""
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.named)
    graders = {task.grader for task in tasks} | graders_of(config.rl.reward)
    check_graders(graders, config.tools, config.executor.limit_s)
    tools = check_lookups(config, world_of(config), {task.profile for task in tasks})
    if "code" in tools or any(task.grader == TESTS for task in tasks):
        require_bubblewrap(config.tools.sandbox)


def check_lookups(config: Recipe, world: World, profiles: Iterable[str]) -> set[str]:
    """Returns the tools that the profiles call; raises UserError for one that nobody has, or that leads nowhere."""
    called = {tag.name for name in profiles for tag in find_profile(name).tools}
    check_called(called, config.tools, articles=world.articles is not None, site=world.site is not None)
    return called


def check_experts(config: Recipe, world: World) -> None:
    """Raises UserError where a role of the team has neither a language model nor an expert of the world's own."""
    plays = not config.sft.data and config.distill.transcripts is None
    if world.has_experts or not (plays or config.rl.teacher_fallback.attempts):
        return
    for role in roles_of(config):
        if config.team.model_of(role) == EXPERTS:
            raise UserError(
                f"nobody plays the {role}: set team.model to one of `models`, or tasks.world to a world with experts"
            )


def check_models(config: Recipe) -> None:
    """Raises UserError for a model of the teachers that can't be asked."""
    for name, model in config.models.items():
        if bool(model.endpoint.url) == bool(model.serve.model):
            raise UserError(f"models.{name}: name an endpoint.url or a serve.model, one of the two")
        if not model.serve.model:
            check_endpoint(model.endpoint, f"models.{name}.endpoint")


def check_distill(config: Recipe, runs: int) -> None:
    distill = config.distill
    for key, name in (("obedience", distill.obedience.model), ("rewriting", distill.rewriting.model)):
        if name and name not in config.models:
            known = ", ".join(sorted(config.models)) or "none"
            raise UserError(f"distill.{key}.model: no model {name!r}; `models` has {known}")
    duplicates = distill.filters.duplicates
    if min(distill.keep, runs) > duplicates.documents:
        raise UserError(
            f"distill.filters.duplicates.documents is {duplicates.documents}, below the "
            f"{min(distill.keep, runs)} runs that may be kept"
        )
    for path in map(Path, config.sft.data):
        if not path.exists() or (path.is_dir() and not shard_paths(path)):
            raise UserError(f"sft.data: no data set at {path}: a released file, or a folder with train-*.parquet")
    if distill.transcripts is not None:
        path = Path(distill.transcripts)
        if not path.is_file() and not any(path.glob("*.parquet")):
            raise UserError(f"distill.transcripts: no transcripts at {path}")


def check_counts(config: Recipe) -> None:
    counts = {
        "placement.engines": config.placement.engines,
        "placement.tool_executors": config.placement.tool_executors,
        "sft.learner.ranks": config.sft.learner.ranks,
        "rl.learner.ranks": config.rl.learner.ranks,
        "sft.checkpoint_every": config.sft.checkpoint_every,
        "rl.checkpoint_every": config.rl.checkpoint_every,
        "rl.window.groups_per_batch": config.rl.window.groups_per_batch,
        "rl.window.max_staleness": config.rl.window.max_staleness + 1,
        "rl.group": config.rl.group - config.rl.algorithm_of().needs.group + 1,
    }
    for key, count in counts.items():
        if count < 1:
            raise UserError(f"{key} is too small: {OmegaConf.select(OmegaConf.structured(config), key)}")


def check_algorithm(config: Recipe) -> None:
    """Raises UserError for an algorithm that nobody knows, and for sampling whose log-probs a learner can't have."""
    config.rl.algorithm_of()
    sampling = config.rl.sampling
    if sampling.temperature <= 0 or sampling.top_p != 1.0:
        raise UserError(
            f"rl.sampling has temperature {sampling.temperature:g} and top_p {sampling.top_p:g}: log-probs can follow "
            "any temperature above 0, and a top_p of 1 only"
        )


def check_same(path: Path, config: Recipe) -> None:
    """A folder holds one run: UserError where it was begun with other settings."""
    if not path.exists():
        return
    before, now = (_flat(OmegaConf.create(text)) for text in (path.read_text(), dump(config)))
    changed = [key for key in {**now, **before} if before.get(key) != now.get(key) and not free_to_change(key)]
    if changed:
        key = changed[0]
        raise UserError(
            f"{path.parent} holds a run with {key}={before.get(key)}, not {now.get(key)}: resume it with the same "
            "settings, or choose another run_dir"
        )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, Mapping):
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value if isinstance(value, str | int | float | None) else list(value)
    return flat
