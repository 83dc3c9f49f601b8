"""One run: its folder, what of it is done, and what a person sees of it."""

import asyncio
import json
import re
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from actors.sizes import hub_name
from cluster.resources import Demand, require
from coa.config import dump
from coa.data.shards import shard_paths
from coa.episode import Grammar
from coa.errors import UserError
from coa.files import write_atomically
from coa.graders import check_graders, in_place_of
from coa.metrics import MetricsLog
from coa.models.endpoint import check_endpoint
from coa.profiles import profile as find_profile
from coa.rewards import graders_of
from coa.tasks import load_tasks, split
from coa.teachers.store import graders_in
from coa.teachers.teams import check_team
from coa.types import Task
from coa.world import World, evaluation_tasks, training_task
from coa.world.questions import PROFILE_OF
from jobs.console import Console
from jobs.recipe import Recipe

FREE_TO_CHANGE = (
    "run_dir",
    "session.",
    "placement.",
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


class Run:
    """Paths, finished stages and tasks of the run in `config.run_dir`."""

    def __init__(self, config: Recipe, console: Console) -> None:
        self.config, self.console = config, console
        self.folder = Path(config.run_dir).resolve()
        self.trajectories = self.folder / "trajectories"
        self.teachers = self.folder / "teachers"
        self.data = self.folder / "data"
        self.checkpoints = self.folder / "checkpoints"
        self.tokenizer = self.checkpoints / "tokenizer"
        self.start_model = self.checkpoints / "start"
        """The policy before its first step, tokenizer included."""
        self.sft_model = self.checkpoints / "sft-model"
        self.model = self.folder / "model"

    def prepare(self) -> None:
        """Makes the folder a training run's."""
        for folder in (self.trajectories, self.teachers, self.data, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self.folder / "config.yaml", dump(self.config))

    def result(self, stage: str) -> dict[str, Any] | None:
        """What a finished stage left; None while it is not finished."""
        path = self._result_path(stage)
        return json.loads(path.read_text()) if path.exists() else None

    def finish(self, stage: str, result: Mapping[str, Any]) -> dict[str, Any]:
        write_atomically(self._result_path(stage), json.dumps(result, indent=1))
        return dict(result)

    def _result_path(self, stage: str) -> Path:
        return self.checkpoints / f"{stage}.json"

    def metrics(self, stage: str, step: int) -> MetricsLog:
        """The run's metrics, open for a stage that goes on from `step`."""
        return MetricsLog(self.folder / "metrics.jsonl", resume={stage: step})

    @cached_property
    def world(self) -> World:
        return World(self.config.world)

    @cached_property
    def _file(self) -> tuple[tuple[Task, ...], tuple[Task, ...]] | None:
        if self.config.tasks.path is None:
            return None
        return split(tasks_of_file(self.config), self.config.tasks.held_out)

    @property
    def team_runs(self) -> int:
        """That distillation is to play."""
        return self.config.distill.runs_of(None if self._file is None else len(self._file[0]))

    def training_task(self, purpose: str, index: int) -> Task:
        """The index-th task of the endless stream of a purpose ("distill" or "rl")."""
        if self._file is None:
            return training_task(self.world, seed=self.config.seed, purpose=purpose, index=index)
        training = self._file[0]
        return training[index % len(training)]

    def evaluation_tasks(self) -> tuple[Task, ...]:
        if self._file is None:
            evaluation = self.config.evaluation
            return evaluation_tasks(self.world, evaluation.tasks, evaluation.seed)
        return self._file[1]


def check_run(config: Recipe) -> None:
    """Raises UserError, before anything is written, for a recipe that can't be run or resumed."""
    from coa.tools.sandbox import require_bubblewrap
    from coa.tools.standard import check_called, check_tools

    require_bubblewrap(config.tools.sandbox)
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.named)
    check_counts(config)
    tasks = None
    if config.tasks.path is not None:
        training, held_out = split(tasks_of_file(config), config.tasks.held_out)
        if not training or not held_out:
            raise UserError(
                f"{config.tasks.path}: {len(training)} tasks to train on and {len(held_out)} held out; both are needed"
            )
        tasks = len(training)
    profiles = profiles_of(config)
    check_team(config.team, config.models, profiles)
    check_models(config)
    check_distill(config, config.distill.runs_of(tasks))
    check_graders(graders_needed(config), config.tools, config.executor.limit_s)
    check_called({tag.name for name in profiles for tag in find_profile(name).tools})
    for key, path in (("model.path", config.model.path), ("rl.on_policy.teacher", config.rl.on_policy.teacher)):
        if path is not None and not hub_name(path) and not (Path(path) / "config.json").exists():
            raise UserError(f"{key} {path}: no config.json there")
    on_policy, sampling = config.rl.on_policy, config.rl.sampling
    plainly = config.agent.grammar is Grammar.forgive and (sampling.temperature, sampling.top_p) == (1.0, 1.0)
    if on_policy.teacher is not None and not plainly:
        raise UserError(
            "rl.on_policy compares plain log-probs: it needs agent.grammar=forgive, and temperature and top_p of 1"
        )
    check_same(Path(config.run_dir) / "config.yaml", config)


def tasks_of_file(config: Recipe) -> tuple[Task, ...]:
    """Of a recipe that has a `tasks.path`; read again only once the file has changed, since checks and stages ask
    often."""
    asked = config.tasks
    assert asked.path is not None
    return _read_tasks(_state(Path(asked.path)), asked.path, asked.profile, asked.grader)


@lru_cache(maxsize=1)
def _read_tasks(state: object, path: str, profile: str, grader: str | None) -> tuple[Task, ...]:
    """`state`: what `_state` says of the path, for the cache alone."""
    return load_tasks(path, profile=profile, grader=grader)


def _state(path: Path) -> tuple[tuple[object, ...], ...]:
    """What changes when the file does, or one in the folder."""
    files = sorted(file for file in (path, *path.rglob("*")) if file.is_file())
    told = ((file, file.stat()) for file in files)
    return tuple((str(file), stat.st_dev, stat.st_ino, stat.st_mtime_ns, stat.st_size) for file, stat in told)


def graders_needed(config: Recipe) -> set[str]:
    """Of rewards, of the recipe's tasks, and of transcripts that nobody graded yet; raises UserError for files of
    tasks or transcripts that can't be read."""
    graders = graders_of(config.rl.reward)
    if config.tasks.path is not None:
        graders |= {task.grader for task in tasks_of_file(config)}
    if config.distill.transcripts is not None and not config.sft.data:
        found = graders_in(Path(config.distill.transcripts))
        graders |= {in_place_of(grader, config.tasks.grader) for grader in found}
    return graders


def profiles_of(config: Recipe) -> set[str]:
    if config.tasks.path is not None:
        return {task.profile for task in tasks_of_file(config)}
    return {config.world.profile} if config.world.profile else set(PROFILE_OF.values())


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
        "rl.group": config.rl.group - (config.rl.on_policy.teacher is None),
    }
    for key, count in counts.items():
        if count < 1:
            raise UserError(f"{key} is too small: {OmegaConf.select(OmegaConf.structured(config), key)}")


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


def in_session(
    config: Recipe,
    console: Console,
    body: Callable[[Run], Coroutine[Any, Any, None]],
    *,
    demands: Sequence[Sequence[Demand]],
) -> None:
    """Runs `body` in an event loop on a Ray cluster that has room for each of the sets of demands."""
    from cluster.resources import cluster_nodes
    from cluster.session import session

    with session(config.session):
        nodes = cluster_nodes()
        for together in demands:
            require(together, nodes)
        asyncio.run(body(Run(config, console)))
