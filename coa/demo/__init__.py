"""The tiny world of the tiny recipe; it is registered like a user's own world (`coa.demo.guest`)."""

from coa.demo.tasks import evaluation_tasks, training_task
from coa.demo.world import SearchResult, World, WorldConfig

__all__ = ["SearchResult", "World", "WorldConfig", "evaluation_tasks", "training_task"]
