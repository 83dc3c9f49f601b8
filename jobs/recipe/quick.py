"""A small pass through all stages of a recipe: whether everything works, before hours or money are spent."""

from pathlib import Path

from coa.config import load
from jobs.recipe.schema import Recipe

SMALL = (
    *("distill.keep=64", "sft.epochs=null", "sft.steps=8"),
    *("rl.steps=2", "rl.window.groups_per_batch=4", "evaluation.tasks=16"),
)
"""Overrides that make a recipe small; the user's own are taken after them."""


def quick(recipe: Path | None) -> tuple[str, ...]:
    """The overrides of a quick run, which has a folder of its own."""
    return (*SMALL, f"run_dir={load(Recipe, recipe).run_dir}-quick")
