"""How long the rest of a run will take."""

from dataclasses import replace

from actors.learner.packing import packing_of
from actors.learner.sizes import architecture
from cluster.session import address_of
from coa.distill.dataset.tokens import mean_lengths
from coa.planning.remaining import Lengths, Work, flops_s, in_words
from jobs.evaluation.attempts import both
from jobs.recipe.forecast import passes_of
from jobs.recipe.schema import Recipe
from jobs.run.run_dir import RunDir


def remaining(run: RunDir) -> str:
    """One line; empty if it can't be told: on GPUs, on a cluster, and for a new model, which is so small that other
    things than arithmetic take most of its time."""
    config = run.config
    built, placement = architecture(config.model), config.placement
    elsewhere = address_of(config.session) or placement.engine_gpus or placement.learner_gpus
    if config.model.path is None or built is None or elsewhere:
        return ""
    rows, prompt, whole = mean_lengths(run.data)
    lengths, speed = Lengths(prompt, whole), flops_s(built.hidden)
    left = {
        name: work.seconds(built, lengths, speed)
        for name, work in works(config, lengths, rows=rows, tasks=len(run.evaluation_tasks())).items()
        if run.result(name) is None
    }
    return in_words(left, speed) if left else ""


def works(config: Recipe, lengths: Lengths, *, rows: int, tasks: int) -> dict[str, Work]:
    """What each stage computes, in their order. rows: demonstrations; tasks: those that are evaluated."""
    sft, rl = config.sft, config.rl
    attempts = sum(decoding.samples for decoding in both(config.evaluation))
    evaluation = Work(played=tasks * lengths.of_group(attempts), starts=True)
    passes = (2 if sft.learner.lora.rank else 3) + sft.learner.gradient_checkpointing
    group = lengths.of_group(rl.group)
    learnt = group if packing_of(config.model, rl.learner).share_prefixes else rl.group * lengths.whole
    groups = rl.steps * rl.window.groups_per_batch
    return {
        **({"evaluation-base": evaluation} if config.evaluates_base else {}),
        "sft": Work(learnt=passes * sft.steps_of(rows) * sft.batch * lengths.whole, starts=True),
        "evaluation-sft": evaluation,
        "rl": Work(played=groups * group, learnt=passes_of(config) * groups * learnt, starts=True),
        "evaluation-rl": replace(evaluation, starts=False),  # on the engines of RL
    }
