"""Checks of what a recipe asks of GPUs and of the libraries that use them. None of them starts anything."""

from importlib.util import find_spec

from actors.learner.deepspeed_settings import check_deepspeed
from actors.rollout.config import check_arguments
from cluster.resources import this_node
from cluster.session import address_of
from coa.builds import FOR_GPUS, torch_is_for_cpus, vllm_is_for_cpus
from coa.errors import UserError
from jobs.recipe.schema import Recipe


def check_gpus(config: Recipe) -> None:
    """Raises UserError for engines whose GPUs are not those that their model is split over, and, where this machine is
    the cluster, for GPUs that it has and the installed libraries can't use."""
    gpus, split = config.placement.engine_gpus, config.engine.tensor_parallel
    if gpus and max(1.0, gpus) != split:
        raise UserError(
            f"placement.engine_gpus is {gpus:g} and engine.tensor_parallel is {split}: an engine's model is split over "
            "all of its GPUs, so set both to the same number"
        )
    check_arguments(config.engine.arguments)
    if address_of(config.session) is not None or not this_node(config.session.cpus)["GPU"]:
        return
    if gpus and vllm_is_for_cpus():
        raise UserError(f"placement.engine_gpus is {gpus:g}, and the installed vLLM is built for CPUs: {FOR_GPUS}")
    for key in ("learner_gpus", "scorer_gpus"):
        if (count := getattr(config.placement, key)) and torch_is_for_cpus():
            raise UserError(f"placement.{key} is {count:g}, and the installed PyTorch is built for CPUs: {FOR_GPUS}")


def check_learners(config: Recipe) -> None:
    """Raises UserError if learners train adapters without the package that makes them, or pass on to DeepSpeed what
    has settings of its own."""
    for stage, learner in (("sft", config.sft.learner), ("rl", config.rl.learner)):
        check_deepspeed(learner, config.model.dtype, f"{stage}.learner")
        if learner.lora.rank and find_spec("peft") is None:
            raise UserError(
                f"{stage}.learner.lora.rank is {learner.lora.rank}, and the package peft is not installed: "
                "pip install -e '.[lora]'"
            )


def check_parts(config: Recipe) -> None:
    """Raises UserError for several ranks or engines with a part of a GPU each: Ray puts as many as fit on one GPU. NCCL
    allows no two ranks there, and an engine does not find the memory that another one has taken."""
    place, ranks = config.placement, max(config.sft.learner.ranks, config.rl.learner.ranks)
    for key, gpus, what, count in (
        ("learner_gpus", place.learner_gpus, "ranks", ranks),
        ("engine_gpus", place.engine_gpus, "engines", max(place.engine_range)),
    ):
        if 0 < gpus < 1 and count > 1:
            raise UserError(
                f"placement.{key} is {gpus:g} for {count} {what}, expected 1 or more: only one of them may share a GPU"
            )


def check_turns(config: Recipe) -> None:
    """Raises UserError if `engine.sleep_mode` is combined with settings by which engines run while learners train."""
    if not config.engine.sleep_mode:
        return
    if stale := config.rl.window.max_staleness:
        raise UserError(
            f"engine.sleep_mode needs rl.window.max_staleness=0, not {stale}: engines sleep while learners train"
        )
    if len(set(config.placement.engine_range)) > 1:
        raise UserError(
            "engine.sleep_mode can't be combined with engine autoscaling: an engine that is added while learners train "
            "would have no GPU memory; leave out placement.min_engines and placement.max_engines"
        )
