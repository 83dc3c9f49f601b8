"""Which graders, roles and models a recipe needs, and the cluster resources of each stage."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from actors.learner.config import LearnerConfig
from actors.learner.sizes import hub_name
from actors.weights.transport import BUCKET_BYTES
from cluster.resources import Demand, Role, learner_demands, rl_demands, tool_demands
from coa.agent.profiles import profile as find_profile
from coa.distill.contamination import Contamination
from coa.distill.filters import Filter
from coa.errors import UserError
from coa.grading.graders import in_place_of
from coa.grading.rewards import graders_of
from coa.planning.memory import RankMemory, rank_memory
from coa.planning.models import Architecture
from coa.teams.kinds import kinds_of, members
from coa.teams.store import graders_in
from coa.teams.teams import EXPERTS
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of


def graders_needed(config: Recipe) -> set[str]:
    """Returns the graders of rewards, of the recipe's tasks, and of transcripts that are not graded yet.

    Raises UserError for files of tasks or transcripts that can't be read.
    """
    graders = graders_of(config.rl.reward) | world_of(config).graders()
    if config.distill.transcripts is not None and config.distils:
        found = graders_in(Path(config.distill.transcripts))
        graders |= {in_place_of(grader, config.tasks.grader) for grader in found}
    return graders


def profiles_of(config: Recipe) -> set[str]:
    """Returns the agent profiles of the recipe's tasks."""
    return world_of(config).profiles()


def roles_of(config: Recipe) -> list[str]:
    """Returns the team's roles for the profiles of the recipe's tasks."""
    return sorted({role for name in profiles_of(config) for role in members(config.team, find_profile(name))})


def models_of_team(config: Recipe) -> set[str]:
    """Returns those of the recipe's `models` that play roles of the team, or that answer the recipe's program."""
    if config.agent.program.is_set:
        return {config.team.model} - {EXPERTS}
    return {config.team.model_of(role) for role in roles_of(config)} - {EXPERTS}


def models_by_role(config: Recipe) -> tuple[tuple[str, str], ...]:
    """Returns (role, model) for each role that a language model plays, as transcripts record it: ("planner",
    "strong: gpt-4.1") has the model's key in the recipe's `models`, and its own name."""
    keys = ((role, config.team.model_of(role)) for role in roles_of(config))
    return tuple((role, f"{key}: {config.models[key].name}") for role, key in keys if key != EXPERTS)


def server_demands(config: Recipe, names: Iterable[str]) -> list[Demand]:
    """Returns the resources of those of the `models` that are served in the cluster. Unknown names are ignored, since
    a check rejects them."""
    served = (config.models[name].serve for name in sorted((set(names) & config.models.keys()) - {EXPERTS}))
    return [Demand("model server", Role.model, {"CPU": one.cpus, "GPU": one.gpus}) for one in served if one.model]


def models_of_review(config: Recipe) -> set[str]:
    """Returns those of the recipe's `models` that judge or rewrite runs."""
    return {config.distill.obedience.model, config.distill.rewriting.model} - {""}


def models_asked(config: Recipe) -> set[str]:
    """Returns those of the recipe's `models` that distillation sends requests to."""
    return models_of_review(config) | (set() if config.distill.transcripts else models_of_team(config))


def filter_of(config: Recipe, contamination: Contamination | None = None) -> Filter:
    """Returns the filter of distillation. A judge of obedience sees the winner's line alone, so that no other line of a
    debate is kept beside one. contamination: the tasks of evaluation sets."""
    return Filter(config.distill.filters, contamination, further=not config.distill.obedience.model)


def most_kept(config: Recipe, runs: int) -> int:
    """Returns the maximum number of chains that are kept of team runs: each line of a debate may be one."""
    lines = 1 if config.distill.obedience.model else max(kind.lines_of(config.team) for kind in kinds_of(config.team))
    return lines * min(config.distill.keep, runs)


def models_of_fallback(config: Recipe) -> set[str]:
    """Returns those of the recipe's `models` that the teacher fallback of RL uses; empty without a fallback."""
    return models_of_team(config) | models_of_review(config) if config.rl.teacher_fallback.attempts else set()


def is_finished(config: Recipe, stage: str) -> bool:
    """Returns whether an earlier command has finished the stage in the run's folder."""
    return (Path(config.run_dir) / "checkpoints" / f"{stage}.json").exists()


def has_episodes(stages: Collection[str]) -> bool:
    """Returns whether the policy plays episodes in one of the stages."""
    return not {"distill", "sft"}.issuperset(stages)


def tools_of(profiles: Iterable[str]) -> set[str]:
    """Returns the tools that the profiles call, by name."""
    return {tag.name for name in profiles for tag in find_profile(name).tools}


def models_paid(config: Recipe, stages: Collection[str]) -> set[str]:
    """Returns those of the recipe's `models` that the unfinished ones of the stages send requests to."""
    distils = "distill" in stages and config.distils and not is_finished(config, "distill")
    return (models_asked(config) if distils else set()) | (models_of_fallback(config) if "rl" in stages else set())


def distill_demands(config: Recipe) -> list[Demand]:
    return [*tool_demands(config.placement), *server_demands(config, models_asked(config))]


def sft_demands(config: Recipe) -> list[Demand]:
    return learner_demands(config.placement, config.sft.learner.ranks)


def reinforcement_demands(config: Recipe) -> list[Demand]:
    """Returns the resources of RL, in which engines, learners and teachers run at the same time."""
    scored = config.rl.on_policy.teacher is not None
    teachers = server_demands(config, models_of_fallback(config))
    return [*rl_demands(config.placement, config.rl.learner.ranks, scored=scored), *teachers]


def local_models(config: Recipe) -> list[str]:
    """Returns the local folders of models that cluster nodes read besides the run's own; hub models have none."""
    teacher = config.rl.on_policy.teacher
    named = [*([teacher] if teacher else []), *(model.serve.model for model in config.models.values())]
    return [str(Path(path).resolve()) for path in named if path and not hub_name(path)]


def memory_of_rank(config: Recipe, stage: str, learner: LearnerConfig, built: Architecture) -> RankMemory:
    """Returns the memory of one rank of the learners of a stage, sft or rl."""
    needs, bucket, longest = None, 0, longest_sample(config, stage)
    if stage == "rl":
        bucket = BUCKET_BYTES
        with suppress(UserError):  # an unknown algorithm, which the check reports
            needs = config.rl.algorithm_of().needs
    gpu = config.placement.learner_gpus > 0
    return rank_memory(built, learner, config.model.dtype, longest=longest, needs=needs, bucket_bytes=bucket, gpu=gpu)


def new_positions(config: Recipe) -> int:
    """Returns the maximum sequence length in tokens of a new model of the recipe."""
    return config.model.max_positions or max(longest_sample(config, stage) for stage in ("sft", "rl"))


def longest_sample(config: Recipe, stage: str) -> int:
    """Returns the maximum length in tokens of a sample that a stage, sft or rl, trains on. In RL, it is that of the
    episodes after the first `rl.short_steps` weight versions."""
    longest = config.agent.limits.max_tokens
    return config.sft.max_tokens or longest if stage == "sft" else longest
