"""The world of a recipe, and its held-out tasks."""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256
from itertools import chain, zip_longest

from coa.tasks.file_tasks import FileTasks
from coa.tasks.worlds import World, find_world
from coa.types import Task
from jobs.recipe.schema import EvaluationConfig, Recipe

OF_WORLD = 600
"""Number of held-out tasks of an endless world if the recipe gives none."""


def world_of(config: Recipe) -> World:
    """The source of the recipe's tasks: its tasks file, in the world that the recipe names, or that world itself."""
    named = find_world(config.tasks.world)(config.world)
    return named if config.tasks.path is None else FileTasks(config.tasks, named)


def held_out_tasks(world: World, evaluation: EvaluationConfig) -> tuple[Task, ...]:
    """The tasks that are kept from training: all of a file's, and as many of a world's as are evaluated."""
    return world.evaluation_tasks(evaluation.tasks or OF_WORLD, seed=evaluation.seed)


def evaluation_tasks(world: World, evaluation: EvaluationConfig) -> tuple[Task, ...]:
    """The held-out tasks that are evaluated."""
    tasks, count = held_out_tasks(world, evaluation), evaluation.tasks
    return tasks if count is None or len(tasks) <= count else sample(tasks, count)


def sample(tasks: Sequence[Task], size: int) -> tuple[Task, ...]:
    """At most `size` tasks, taken from the families in turn as long as these have some, in an order that depends only
    on the tasks' ids."""
    families: dict[str, list[Task]] = defaultdict(list)
    for task in sorted(tasks, key=lambda task: sha256(task.id.encode()).digest()):
        families[task.family].append(task)
    in_turn = chain.from_iterable(zip_longest(*(families[name] for name in sorted(families))))
    return tuple(task for task in in_turn if task is not None)[:size]
