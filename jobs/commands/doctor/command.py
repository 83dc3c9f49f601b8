"""`coa doctor`: what this machine has and lacks for each part of the system, and what to type.

coa doctor --recipe web_32b run_dir=/data/runs/web placement.engines=4
coa doctor model=/data/models/Qwen2.5-7B

Nothing is started but an empty program in the sandbox and a second of arithmetic. A model is loaded, and compared with
itself. The exit status is 1 if something needed is missing.
"""

from argparse import ArgumentParser
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from coa.errors import UserError
from jobs.commands.command import Command
from jobs.commands.doctor.model import model
from jobs.commands.doctor.parts import PARTS, State
from jobs.recipe.find import find_recipe
from jobs.run.console import Terminal

WIDTH = 80
OVERRIDES = "overrides of the recipe, as for the command; model=PATH: also whether that model can be trained"
MODEL = "model="


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--recipe", help="name of a recipe, or a YAML file, whose needs are checked, API keys included")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help=OVERRIDES)


def run(*, recipe: str | None = None, overrides: Sequence[str] = ()) -> int:
    """Prints a line for each finding; returns the exit status. Raises UserError for a recipe that can't be read, or
    overrides without one."""
    paths = [word.removeprefix(MODEL) for word in overrides if word.startswith(MODEL)]
    overrides = [word for word in overrides if not word.startswith(MODEL)]
    config = None
    if recipe is not None:
        from coa.config import load
        from jobs.recipe.schema import Recipe

        config = load(Recipe, find_recipe(recipe), tuple(overrides))
    elif overrides:
        raise UserError(f"{overrides[0]}: an override is one of a recipe; name it with --recipe")
    found = [(part.name, one) for part in PARTS for one in part.check(config)]
    found += [("model", one) for path in paths for one in model(path, config)]
    table = Table.grid(padding=(0, 2, 0, 0))
    for width in (13, 7, WIDTH - 26):
        table.add_column(width=width, overflow="fold")
    colours = {State.OK: "green", State.WARN: "yellow", State.MISSING: "bold red"}
    for name, one in found:
        said = Text(one.what + (f"\n> {one.type}" if one.type else ""))
        table.add_row(name, Text(one.state.value, style=colours[one.state]), said)
    Terminal(width=WIDTH, highlight=False, emoji=False, markup=False).print(table)
    return int(any(one.state is State.MISSING for _, one in found))


COMMAND = Command(name="doctor", run=run, arguments=arguments)
