"""The tiny world that the tiny recipe trains in: a guest, as a world of a user's own would be (`coa.demo.guest`)."""

from coa.demo.tasks import evaluation_tasks, training_task
from coa.demo.world import SearchResult, World, WorldConfig

__all__ = ["SearchResult", "World", "WorldConfig", "evaluation_tasks", "training_task"]
