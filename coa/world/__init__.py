"""The tiny world that the tiny recipe trains in."""

from coa.world.tasks import evaluation_tasks, tasks_sha256, training_task
from coa.world.world import SearchResult, World, WorldConfig

__all__ = ["SearchResult", "World", "WorldConfig", "evaluation_tasks", "tasks_sha256", "training_task"]
