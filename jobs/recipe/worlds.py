"""The world of a recipe."""

from coa.tasks.file_tasks import FileTasks
from coa.tasks.worlds import World, find_world
from jobs.recipe.schema import Recipe


def world_of(config: Recipe) -> World:
    """The source of the recipe's tasks: its tasks file, in the world that the recipe names, or that world itself."""
    named = find_world(config.tasks.world)(config.world)
    return named if config.tasks.path is None else FileTasks(config.tasks, named)
