"""Writes docs/settings.md: python -m scripts.settings"""

from dataclasses import replace
from pathlib import Path

from coa.settings import as_markdown, settings_of
from coa.tasks.worlds import settings_of as world_settings_of
from jobs.recipe.schema import Recipe

PAGE = Path(__file__).parents[1] / "docs" / "settings.md"
HEAD = """\
# Settings

Every setting of a recipe, with its default. `coa recipe rl.window` prints a part of them, and `coa recipe --search
stale` searches for words. This page is generated from the code by `python -m scripts.settings`. None in a sentence is
`null` in YAML, `NAME` stands for a name that the recipe chooses, and the section `world` has the settings of the world
`tiny`.
"""


def page() -> str:
    return HEAD + as_markdown(settings_of(replace(Recipe(), world=world_settings_of("tiny")()))) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
