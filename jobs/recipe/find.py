"""Finds recipes: those of this package by name, and a user's own by path."""

from pathlib import Path

from coa.errors import UserError
from coa.paths import local

RECIPES = Path(__file__).parents[1] / "recipes"


def find_recipe(name: str) -> Path:
    """A recipe of this package by name, or a file by path; raises UserError with the known names."""
    path = Path(local(name, "--recipe"))
    if path.suffix not in ("", ".yaml", ".yml", ".json"):
        raise UserError(f"recipe {name}: a recipe is a YAML file, whose name ends in .yaml or .yml")
    if path.suffix or "/" in name:
        return path
    path = RECIPES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(recipe.stem for recipe in RECIPES.glob("*.yaml")))
        raise UserError(
            f"no recipe {name}: known are {known}; a file of your own is given by its path, such as ./mine.yaml"
        )
    return path
