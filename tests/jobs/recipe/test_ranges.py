from dataclasses import dataclass, field, make_dataclass
from typing import Any

import pytest
import torch

from coa.errors import UserError
from jobs.recipe.ranges import ABOVE_0, SEEDS, UP_TO_1, check_ranges, numbers_of
from jobs.recipe.schema import Recipe
from jobs.stages.sft import batch_indices


def tree(key: str, value: Any) -> Any:
    """A tree of dataclasses with one leaf."""
    name, _, rest = key.partition(".")
    held = tree(rest, value) if rest else value
    return make_dataclass("Section", [(name, Any)], frozen=True)(held)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rl.steps", -1, "rl.steps is -1, expected at least 0"),
        ("sft.learner.optimizer.lr", -1.0, "sft.learner.optimizer.lr is -1, expected at least 0"),
        ("sft.learner.optimizer.lr", float("nan"), "sft.learner.optimizer.lr is nan, expected at least 0"),
        ("model.layers", 0, "model.layers is 0, expected more than 0"),
        ("model.key_value_heads", 0, "model.key_value_heads is 0, expected more than 0"),
        ("engine.gpu_memory_utilization", 3.0, "engine.gpu_memory_utilization is 3, expected at most 1"),
        ("tasks.held_out", 1.5, "tasks.held_out is 1.5, expected at most 1"),
        ("seed", -1, "seed is -1, expected from 0 to 9223372036854775807"),
        ("seed", 2**63, "seed is 9223372036854775808, expected from 0 to 9223372036854775807"),
    ],
)
def test_a_number_that_no_run_can_have_is_named(key: str, value: float, said: str) -> None:
    with pytest.raises(UserError) as refused:
        check_ranges(tree(key, value))
    assert str(refused.value) == said


@pytest.mark.parametrize(
    ("key", "value"),
    [("rl.steps", 0), ("world.smallest", -5), ("evaluation.seed", -1), ("rl.keep_batches", False), ("seed", 2**63 - 1)],
)
def test_a_number_that_means_something_is_let_through(key: str, value: float) -> None:
    check_ranges(tree(key, value))


@dataclass(frozen=True)
class Named:
    models: dict[str, Any] = field(default_factory=lambda: {"m": tree("serve.gpus", -1), "n": {"gpus": -1}})


def test_sections_that_a_recipe_names_are_looked_at_and_free_mappings_are_not() -> None:
    assert list(numbers_of(Named())) == [("models.m.serve.gpus", -1)]


def test_every_seed_that_is_let_through_is_one_for_the_libraries() -> None:
    for seed in (0, SEEDS - 1):
        torch.manual_seed(seed)
        assert sorted(next(batch_indices(4, 4, 1, seed))) == [0, 1, 2, 3]


def test_the_patterns_match_settings_that_there_are_and_the_defaults_are_within_them() -> None:
    from fnmatch import fnmatchcase

    keys = {key for key, _ in numbers_of(Recipe())} | {"distill.runs", "model.max_positions", "session.cpus"}  # None
    assert [one for one in (*ABOVE_0, *UP_TO_1) if not any(fnmatchcase(key, one) for key in keys)] == []
    check_ranges(Recipe())
