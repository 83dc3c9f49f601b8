import pytest
import torch

from coa.bounds import AT_LEAST_0, check_bounds
from coa.config import load
from coa.errors import UserError
from jobs.recipe.schema import SEEDS, Recipe
from jobs.stages.sft import batch_indices


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("rl.steps=-1", "expected at least 0"),
        ("rl.group=0", "expected at least 1"),
        ("rl.evaluate_every=-1", "expected at least 0"),
        ("rl.evaluate_tasks=0", "expected at least 1"),
        ("rl.window.groups_per_batch=0", "expected at least 1"),
        ("rl.learner.updates_per_batch=0", "expected at least 1"),
        ("rl.learner.collective_s=0.5", "expected at least 1"),
        ("rl.learner.loss.correction_cap=0.5", "expected at least 1"),
        ("rl.learner.loss.reject_below=1.0", "expected at least 0 and less than 1"),
        ("rl.learner.loss.reject_above=1.0", "expected more than 1"),
        ("rl.on_policy.weight=0", "expected more than 0"),
        ("rl.on_policy.reward=-1", "expected at least 0"),
        ("rl.on_policy.limit=0", "expected more than 0"),
        ("rl.teacher_fallback.attempts=-1", "expected at least 0"),
        ("rl.teacher_fallback.share=0", "expected more than 0"),
        ("sft.learner.optimizer.lr=-1", "expected at least 0"),
        ("sft.learner.optimizer.lr=.nan", "expected at least 0"),
        ("sft.learner.zero_stage=0", "expected from 1 to 3"),
        ("sft.learner.sequence_parallel=0", "expected at least 1"),
        ("sft.checkpoint_every=0", "expected at least 1"),
        ("model.layers=0", "expected at least 1"),
        ("model.key_value_heads=0", "expected at least 1"),
        ("engine.gpu_memory_utilization=3", "expected more than 0 and at most 1"),
        ("engine.kv_cache_gib=0", "expected more than 0"),
        ("placement.engines=0", "expected at least 1"),
        ("session.cpus=0", "expected at least 1"),
        ("pool.deaths=0", "expected at least 1"),
        ("pool.scaling.wait_share=1.5", "expected more than 0 and less than 1"),
        ("pool.scaling.cooldown_s=0", "expected more than 0"),
        ("pool.scaling.handover_s=-1", "expected at least 0"),
        ("executor.call_s=0", "expected more than 0"),
        ("executor.concurrency_of.code=0", "expected at least 1"),
        ("executor.call_s_of.code=-1", "expected more than 0"),
        ("executor.retry.attempts=0", "expected at least 1"),
        ("executor.scaling.slack=1", "expected more than 0 and less than 1"),
        ("executor.scaling.look_back_s=0", "expected more than 0"),
        ("serving.scaling.target_requests=0", "expected at least 1"),
        ("serving.scaling.target_kv_use=1.5", "expected more than 0 and at most 1"),
        ("serving.follow_every_s=0.5", "expected at least 1"),
        ("tools.wiki.topk=101", "expected from 1 to 100"),
        ("tools.mcp.mine.connect_s=0", "expected more than 0"),
        ("tasks.held_out=1.5", "expected from 0 to 1"),
        ("team.debaters=1", "expected at least 2"),
        ("team.corrections=-1", "expected at least 0"),
        ("distill.filters.keep_without_reflection=1.5", "expected from 0 to 1"),
        ("distill.filters.correction_copies=0.5", "expected at least 1"),
        ("distill.filters.contamination_words=0", "expected at least 1"),
        ("distill.filters.duplicates.threshold=1.5", "expected from 0 to 1"),
        ("distill.filters.duplicates.error_rate=0", "expected more than 0 and less than 1"),
        ("distill.filters.duplicates.documents=0", "expected at least 1"),
        ("distill.filters.duplicates.solutions_per_task=-1", "expected at least 0"),
        ("distill.obedience.asks=0", "expected at least 1"),
        ("selection.temperature=0", "expected more than 0"),
        ("selection.top_p=0", "expected more than 0 and at most 1"),
        ("selection.limit=0", "expected at least 1"),
        ("selection.direct.tries=0", "expected at least 1"),
        ("selection.tuned.max_rate=1.1", "expected from 0 to 1"),
        ("models.mine.endpoint.attempts=0", "expected at least 1"),
        ("evaluation.samples=0", "expected at least 1"),
        ("evaluation.top_p=2", "expected more than 0 and at most 1"),
        ("seed=-1", "expected from 0 to 9223372036854775807"),
        (f"seed={SEEDS}", "expected from 0 to 9223372036854775807"),
    ],
)
def test_a_number_that_no_run_can_have_is_named(override: str, said: str) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(UserError) as refused:
        load(Recipe, None, [override])
    assert str(refused.value) == f"{key} is {value.removeprefix('.').removesuffix('.0')}, {said}"


@pytest.mark.parametrize("override", ["rl.steps=0", "evaluation.seed=-1", "sft.steps=0", f"seed={SEEDS - 1}"])
def test_a_number_that_means_something_is_let_through(override: str) -> None:
    load(Recipe, None, [override])


def test_the_defaults_are_within_their_bounds() -> None:
    check_bounds(Recipe(), AT_LEAST_0)


def test_every_seed_that_is_let_through_is_one_for_the_libraries() -> None:
    for seed in (0, SEEDS - 1):
        torch.manual_seed(seed)
        assert sorted(next(batch_indices(4, 4, 1, seed))) == [0, 1, 2, 3]
