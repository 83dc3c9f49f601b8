"""The held-out tasks of a run on a user's file, as a file in the run's folder: `coa evaluate --tasks` reads it."""

import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from coa.errors import UserError
from coa.storage.files import write_atomically
from coa.tasks.worlds import World
from coa.types import Task
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import held_out_tasks

FILE = "held_out.jsonl"


def as_rows(tasks: Iterable[Task]) -> str:
    """A tasks file that `coa.tasks.loading` reads back to equal tasks."""
    rows = ({"answer" if name == "answers" else name: value for name, value in asdict(task).items()} for task in tasks)
    return "".join(f"{json.dumps(row, ensure_ascii=False)}\n" for row in rows)


def write_held_out(folder: Path, config: Recipe, world: World) -> None:
    """Writes the file if the recipe's tasks come from a file."""
    if config.tasks.path is not None:
        write_atomically(folder / FILE, _rows(config, world))


def check_held_out(folder: Path, config: Recipe, world: World) -> None:
    """Raises UserError if the run in the folder was begun with other held-out tasks: it may have trained on some of
    the present ones."""
    path = folder / FILE
    if config.tasks.path is not None and path.is_file() and path.read_text(encoding="utf-8") != _rows(config, world):
        raise UserError(
            f"{folder} was begun with other held-out tasks than {config.tasks.path} has now: choose another run_dir"
        )


def _rows(config: Recipe, world: World) -> str:
    return as_rows(held_out_tasks(world, config.evaluation))
