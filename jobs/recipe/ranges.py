"""Valid ranges of a recipe's numbers: none is negative, some must be above 0, and some fractions are at most 1.

Stricter limits are checked by the settings' own dataclasses when a recipe is loaded.
"""

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from fnmatch import fnmatchcase
from typing import Any

from coa.errors import UserError

ANY = ("world.*", "*.seed")
"""Settings that may be negative: a world checks its own, and the seeds of sections are only hashed."""
SEED, SEEDS = "seed", 2**63
"""The run's seed, and the number of those that NumPy, PyTorch and the servers of models take alike."""
ABOVE_0 = (
    "agent.limits.max_turns",
    "agent.limits.max_*tokens",
    "agent.limits.max_seconds",
    "checkpoints.keep",
    "distill.keep",
    "distill.runs",
    "engine.max_concurrent",
    "engine.kv_cache_gib",
    "engine.gpu_memory_utilization",
    "engine.tensor_parallel",
    "evaluation.tasks",
    "model.hidden_size",
    "model.*layers",
    "model.*heads",
    "model.head_dim",
    "model.intermediate_size",
    "model.max_positions",
    "model.vocabulary_limit",
    "placement.engines",
    "placement.tool_executors",
    "session.cpus",
    "session.object_store_gib",
    "teaching.wave",
    "teaching.runs_in_flight",
    "*.learner.ranks",
    "*.learner.packing.*",
    "rl.learner.updates_per_batch",
    "*.checkpoint_every",
    "rl.window.groups_per_batch",
)
UP_TO_1 = ("*.beta1", "*.beta2", "*.gpu_memory_utilization", "distill.most_failed", "tasks.held_out")


def check_ranges(config: Any) -> None:
    """Raises UserError, which names the key, for the first number that is out of range."""
    for key, value in numbers_of(config):
        if _matches(key, ANY):
            continue
        if key == SEED and not 0 <= value < SEEDS:
            raise UserError(f"seed is {value}, expected from 0 to {SEEDS - 1}")
        if _matches(key, ABOVE_0):
            if not value > 0:
                raise UserError(f"{key} is {value:g}, expected more than 0")
        elif not value >= 0:
            raise UserError(f"{key} is {value:g}, expected at least 0")
        if value > 1 and _matches(key, UP_TO_1):
            raise UserError(f"{key} is {value:g}, expected at most 1")


def numbers_of(config: Any, prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a tree of dataclasses, by its dotted key."""
    for field in fields(config):
        key, value = f"{prefix}{field.name}", getattr(config, field.name)
        if is_dataclass(value):
            yield from numbers_of(value, f"{key}.")
        elif isinstance(value, Mapping):
            for name, held in value.items():
                if is_dataclass(held):
                    yield from numbers_of(held, f"{key}.{name}.")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield key, value


def _matches(key: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in patterns)
