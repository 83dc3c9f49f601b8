"""`coa recipe`: every setting that a recipe may have, with its type, its default and what it does."""

import shutil
import sys
import textwrap
from argparse import ArgumentParser
from collections.abc import Iterator

from coa.config import load
from coa.errors import UserError
from coa.settings import Setting, below, settings_of
from coa.settings import search as search_for
from jobs.commands.command import Command
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe

WIDTH = 100
"""Maximum width of the text in columns; exact if stdout is not a terminal."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", nargs="?", metavar="PATH", help="a setting or a section, such as rl.window (all)")
    parser.add_argument(
        "--search", nargs="+", default=[], metavar="WORD", help="only settings that have all of the words"
    )
    parser.add_argument("--recipe", help="show the values of this recipe, and its world's settings")


def run(*, key: str | None, search: list[str], recipe: str | None) -> None:
    settings = list(settings_of(load(Recipe, find_recipe(recipe) if recipe else None)))
    found = settings if key is None else below(settings, key)
    found = search_for(found, *search) if search else found
    if not found:
        raise UserError(f"no setting has the words {' '.join(search)}")
    width = min(WIDTH, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH
    print("\n".join(line for one in found for line in lines_of(one, width)))


def lines_of(setting: Setting, width: int) -> Iterator[str]:
    """The lines of a setting, at most `width` columns wide if its words allow that. Its first line can be pasted as an
    override."""
    yield f"\n{setting.key}" if setting.type is None else f"{setting.assignment:<40}  {setting.type}"
    yield from textwrap.wrap(setting.sentence, width, initial_indent="    ", subsequent_indent="    ")


COMMAND = Command(name="recipe", run=run, arguments=arguments)
