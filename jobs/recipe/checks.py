"""Checks that refuse a recipe that can't be run or resumed, before anything is written or started."""

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from actors.learner.sizes import architecture, check_sequence_parallel
from actors.weights.transports import find_sender
from cluster.remote.reach import parts_of
from cluster.resources import Demand, require, this_node
from cluster.session import address_of
from coa.agent.episode import Grammar
from coa.agent.profiles import PROFILES
from coa.agent.programs.config import check_program
from coa.distill.dataset.shards import is_data_set
from coa.distill.sources.demonstrations import check_data_file
from coa.errors import UserError
from coa.grading.graders import GRADERS, TESTS, check_graders
from coa.grading.toolset import check_called, check_tools
from coa.http.addresses import has_password, redact
from coa.http.keys import bearer, secrets_in
from coa.learning.algorithms import IMITATION
from coa.llm.client import check_endpoint
from coa.reporting.readable import number
from coa.reporting.wandb_sink import mode_of
from coa.storage.checkpoints import open_folder
from coa.storage.keeping import check_keeping
from coa.storage.run_folders import check_folders
from coa.tasks.worlds import World
from coa.teams.kinds import check_kind, check_team
from coa.teams.teams import EXPERTS
from coa.tools.sandbox.sandbox import require_bubblewrap
from coa.types import Task
from jobs.recipe.devices import check_gpus, check_learners, check_parts, check_turns
from jobs.recipe.findings import Finding, Findings
from jobs.recipe.machine import memory_of
from jobs.recipe.models import models_of, served_model
from jobs.recipe.needs import graders_needed, has_episodes, models_paid, most_kept, roles_of, tools_of
from jobs.recipe.resume import check_same, settings_of
from jobs.recipe.schema import Recipe
from jobs.recipe.services import services_of, unasked
from jobs.recipe.worlds import held_out_tasks, world_of
from jobs.run.held_out import check_held_out

STAGES = ("distill", "evaluation-base", "sft", "evaluation-sft", "rl", "evaluation-rl")
"""All stages of a run: those of `coa train`."""


def check_run(config: Recipe, stages: Collection[str] = STAGES) -> Findings:
    """Raises UserError, before anything is written, for a recipe whose stages can't be run or resumed; returns what was
    looked at, and the services that nobody has asked."""
    check_secrets(config)
    mode_of(config.wandb)
    check_group(config)
    check_engines(config)
    check_gpus(config)
    check_learners(config)
    check_names(config)
    check_program(config.agent.program)
    check_taught_program(config)
    world = world_of(config)
    if mistake := world.mistake():
        raise UserError(mistake)
    world.training_task("rl" if "rl" in stages else "distill", 0, seed=config.seed)
    held_out = held_out_tasks(world, config.evaluation)
    tasks = world.listed_tasks() or held_out
    check_data(config)
    if ("distill" in stages and config.distils) or ("rl" in stages and config.rl.teacher_fallback.attempts):
        check_distill(config, world.team_runs if config.distill.runs is None else config.distill.runs)
        check_team(config.team, config.models, world.profiles())
        check_experts(config, world)
        check_models(config)
    if config.tools.judge.url is not None:  # a key that is named must be set, even if no task needs the judge
        bearer(config.tools.judge.key_env)
    tools: set[str] = set()
    if set(stages) != {"sft"}:  # fine-tuning neither calls tools nor grades
        tools = check_services(config, graders_needed(config), world.profiles())
    if config.sft.skipped and config.model.path is None:
        raise UserError("sft.steps=0 leaves fine-tuning out: set model.path to the model that reinforcement begins at")
    check_sharing(config, stages)
    if config.checkpoints.storage is not None:
        open_folder(config.checkpoints.storage)
    if "rl" in stages:
        check_reinforcement(config)
    check_same(Path(config.run_dir) / "config.yaml", config)
    check_held_out(Path(config.run_dir), config, world)
    check_folders(Path(config.run_dir))
    return (
        Finding("settings"),
        Finding(f"tasks of {world.name}" + (f" ({number(len(tasks))})" if world.listed_tasks() else "")),
        *models_of(config, stages, tasks if has_episodes(stages) else ()),
        *memory_of(config, stages),
        *unasked(config, services_of(config, models_paid(config, stages), tools)),
    )


def check_names(config: Recipe) -> None:
    """Raises UserError if `tasks.profile`, `tasks.grader`, `team.rules` or a role is unknown, even if unused."""
    check_kind(config.team)
    for key, known, name in (("profile", PROFILES, config.tasks.profile), ("grader", GRADERS, config.tasks.grader)):
        if name is not None and name not in known:
            raise UserError(f"tasks.{key} is {name!r}: known are {', '.join(known)}")


def check_taught_program(config: Recipe) -> None:
    """Raises UserError for a program that is distilled without a language model in the policy's place."""
    if not (config.agent.program.is_set and config.distils):
        return
    if config.distill.transcripts is not None:
        raise UserError("agent.program: distill.transcripts holds runs of teams; leave out one of the two")
    if config.model.path is None or config.team.model not in config.models:
        raise UserError(
            "agent.program: a language model answers the program in distillation, and the chat template of another one "
            "writes what it says: set team.model to one of `models`, and model.path; or set sft.steps=0"
        )


def check_secrets(config: Recipe) -> None:
    """Raises UserError for a setting with a secret in it: `config.yaml`, logs and reports would hold it too."""
    for key, value in settings_of(config).items():
        for text in map(str, value if isinstance(value, list) else [value]):
            if names := secrets_in(text, os.environ):
                raise UserError(f"{key} holds the value of ${names[0]}: name the variable instead, in a key_env")
            if has_password(text):
                raise UserError(f"{key} is {redact(text)} with a password: set a variable, and name it in a key_env")


def check_sharing(config: Recipe, stages: Collection[str]) -> None:
    """Raises UserError if `sequence_parallel` does not suit the recipe's model, as far as the model is known here."""
    for stage, learner in (("sft", config.sft.learner), ("rl", config.rl.learner)):
        if stage in stages and (size := learner.sequence_parallel) > 1:
            built = architecture(config.model)
            heads = built.heads if built is not None else None
            check_sequence_parallel(size, heads=heads, attention=config.model.attention)


def check_reinforcement(config: Recipe) -> None:
    """Raises UserError for an algorithm, an on-policy teacher or a weight transport that RL can't use."""
    on_policy, sampling = config.rl.on_policy, config.rl.sampling
    check_algorithm(config)
    if config.rl.algorithm == IMITATION and not config.rl.teacher_fallback.attempts:
        raise UserError(
            "rl.algorithm=imitation trains on nothing that the policy sampled: set rl.teacher_fallback.attempts, "
            "whose demonstrations it imitates, or take another algorithm"
        )
    short, most = config.rl.short_tokens, config.agent.limits.max_tokens
    if short > most:
        raise UserError(f"rl.short_tokens is {short}, more than agent.limits.max_tokens={most}")
    plainly = config.agent.grammar is Grammar.lenient and (sampling.temperature, sampling.top_p) == (1.0, 1.0)
    if on_policy.teacher is not None and not plainly:
        raise UserError(
            "rl.on_policy.teacher needs agent.grammar=lenient and rl.sampling with temperature = 1 and top_p = 1, "
            "because it compares log-probs of unmodified distributions"
        )
    find_sender(config.rl.weights.transport)
    check_keeping(
        config.checkpoints, checkpoint_every=config.rl.checkpoint_every, evaluate_every=config.rl.evaluate_every
    )
    check_turns(config)
    check_parts(config)


def check_attempts(model: Path, tasks: Sequence[Task], config: Recipe) -> Findings:
    """Raises UserError if the model can't attempt the tasks; returns what was looked at."""
    check_secrets(config)
    tools = check_services(config, {task.grader for task in tasks}, {task.profile for task in tasks})
    check_group(config)
    check_engines(config)
    return found_of(model, tasks, config, tools)


def check_asked(model: Path, task: Task, config: Recipe) -> Findings:
    """Raises UserError if the model can't answer the task, which is not graded; returns what was looked at."""
    check_secrets(config)
    refuse_program(config)
    return found_of(model, (task,), config, check_services(config, set(), {task.profile}))


def refuse_program(config: Recipe) -> None:
    """Raises UserError for a program where the model's own agent answers."""
    if config.agent.program.is_set:
        raise UserError("agent.program is for `coa train`, `coa rl` and `coa evaluate`: leave it out here")


def found_of(model: Path, tasks: Sequence[Task], config: Recipe, tools: Collection[str]) -> Findings:
    """Checks a model that attempts tasks, and these tools and graders; raises UserError."""
    check_gpus(config)
    check_program(config.agent.program)
    of_tasks = [Finding(f"tasks ({number(len(tasks))})")] if tasks else []
    policy = served_model(model, config.agent, tasks)
    return (Finding("settings"), *of_tasks, policy, *unasked(config, services_of(config, (), tools)))


def check_services(config: Recipe, graders: set[str], profiles: Iterable[str]) -> set[str]:
    """Returns these graders and the tools that the profiles call; raises UserError if a tool does not exist, or if a
    judge, a key or the sandbox that they need is not set up."""
    check_tools(config.tools, crawl_s=config.executor.limit_s("crawl_page"), named=config.executor.limited)
    check_graders(graders, config.tools, config.executor.limit_s)
    tools = check_lookups(config, world_of(config), profiles)
    if "code" in tools - config.tools.mapped or TESTS in graders:
        require_bubblewrap(config.tools.sandbox)
    return graders | tools


def check_lookups(config: Recipe, world: World, profiles: Iterable[str]) -> set[str]:
    """Returns the tools that the profiles call; raises UserError for one that does not exist or is not
    configured."""
    called = tools_of(profiles)
    check_called(called, config.tools, articles=world.articles is not None, site=world.site is not None)
    return called


def check_experts(config: Recipe, world: World) -> None:
    """Raises UserError if a role of the team has neither a language model nor an expert of the world."""
    plays = config.distils and config.distill.transcripts is None
    if world.has_experts or not (plays or config.rl.teacher_fallback.attempts):
        return
    for role in roles_of(config):
        if config.team.model_of(role) == EXPERTS:
            raise UserError(
                f"no model is set for the role {role}: set team.model to one of `models`, or tasks.world to a world "
                "with experts"
            )


def check_models(config: Recipe) -> None:
    """Raises UserError for a teacher model that has neither or both of `endpoint.url` and `serve.model`, or whose
    context leaves no room for a prompt."""
    for name, model in config.models.items():
        if bool(model.endpoint.url) == bool(model.serve.model):
            raise UserError(f"models.{name}: name an endpoint.url or a serve.model, one of the two")
        if not model.serve.model:
            check_endpoint(model.endpoint, f"models.{name}.endpoint")
        elif (reply := model.endpoint.max_tokens or 0) >= (context := model.serve.max_model_len):
            raise UserError(
                f"models.{name}.endpoint.max_tokens is {reply}, which leaves no room for a prompt in "
                f"models.{name}.serve.max_model_len={context}: lower the first, or raise the second"
            )


def check_distill(config: Recipe, runs: int) -> None:
    distill = config.distill
    for key, name in (("obedience", distill.obedience.model), ("rewriting", distill.rewriting.model)):
        if name and name not in config.models:
            known = ", ".join(sorted(config.models)) or "none"
            raise UserError(f"distill.{key}.model: no model {name!r}; `models` has {known}")
    duplicates = distill.filters.duplicates
    if (most := most_kept(config, runs)) > duplicates.documents:
        raise UserError(
            f"distill.filters.duplicates.documents is {duplicates.documents}, below the {most} chains that may be kept"
        )
    if distill.transcripts is not None:
        path = Path(distill.transcripts)
        if not path.is_file() and not any(path.glob("*.parquet")):
            raise UserError(f"distill.transcripts: no transcripts at {path}")


def check_data(config: Recipe) -> None:
    """Raises UserError for a data set of `sft.data` that is missing, or of which no row can be trained on."""
    for path in map(Path, config.sft.data):
        if not path.exists():
            raise UserError(f"sft.data: no data set at {path}: expected a file, or the `data` folder of a run")
        if not is_data_set(path):
            try:
                check_data_file(path, config.tasks.profile)
            except UserError as error:
                raise UserError(f"sft.data: {error}") from error


def check_engines(config: Recipe) -> None:
    """Raises UserError for a number of engines, or of tool executors, that is not within its own range."""
    placement = config.placement
    for name, count, (least, most) in (
        ("engines", placement.engines, placement.engine_range),
        ("tool_executors", placement.tool_executors, placement.tool_range),
    ):
        if not 1 <= least <= count <= most:
            raise UserError(
                f"placement.{name} is {count}, expected from {least} (placement.min_{name}, at least 1) to {most} "
                f"(placement.max_{name})"
            )


def check_group(config: Recipe) -> None:
    """Raises UserError for a group that is smaller than the algorithm needs."""
    least = config.rl.algorithm_of().needs.group
    if config.rl.group < least:
        raise UserError(f"rl.group is {config.rl.group}, expected at least {least}")


def check_algorithm(config: Recipe) -> None:
    """Raises UserError for an unknown algorithm, and for sampling whose log-probs a learner can't compute."""
    config.rl.algorithm_of()
    sampling = config.rl.sampling
    if sampling.temperature <= 0 or sampling.top_p != 1.0 or sampling.top_k:
        raise UserError(
            f"rl.sampling has temperature {sampling.temperature:g}, top_p {sampling.top_p:g} and top_k "
            f"{sampling.top_k}: RL needs temperature > 0, top_p = 1 and top_k = 0, because the learner must recompute "
            "the sampled log-probs"
        )


def check_room(config: Recipe, demands: Iterable[Sequence[Demand]]) -> None:
    """Raises UserError if this machine is the cluster and lacks resources for one of the sets of demands, or if the
    address of another cluster is malformed. Does not connect to that cluster."""
    address = address_of(config.session)
    if address is None:
        node = this_node(config.session.cpus)
        for together in demands:
            require(together, [node])
    elif address not in ("auto", "local"):
        parts_of(address)
