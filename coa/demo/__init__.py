"""The tiny world, in which the tiny recipe trains; registered as a user's own world would be (`coa.demo.guest`)."""

from coa.demo.tasks import evaluation_tasks, training_task
from coa.demo.world import SearchResult, World, WorldConfig

__all__ = ["SearchResult", "World", "WorldConfig", "evaluation_tasks", "training_task"]
