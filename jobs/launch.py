"""Starts a job for the command line and for programs: the same settings, checks, lease and console for both."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coa.config import load
from coa.errors import UserError
from jobs.commands.command import Job
from jobs.recipe.ranges import check_ranges
from jobs.run.console import open_console
from jobs.run.lease import hold, require_folder

if TYPE_CHECKING:
    from jobs.recipe.schema import Recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that may begin."""

    job: Job
    config: "Recipe"
    arguments: Mapping[str, Any]
    """Of its `check` and `run`."""
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "driver.log"


def prepare(job: Job, options: Mapping[str, Any]) -> Prepared:
    """options: `recipe`, `overrides`, `said`, and the job's own arguments, as the command line reads them.

    Raises UserError for settings that no run can have, and for a folder that can't be written to; writes nothing.
    """
    from jobs.cli import find_recipe
    from jobs.recipe.schema import Recipe

    arguments = dict(options)
    recipe = arguments.pop("recipe")
    overrides = (*arguments.pop("overrides"), *(arguments.pop("said", None) or ()))
    config = load(Recipe, find_recipe(recipe) if recipe else None, overrides)
    check_ranges(config)
    if job.of_model:
        arguments["overrides"] = overrides
    if job.folder is not None and arguments["out"] is None:
        arguments["out"] = job.folder(recipe, arguments, overrides)
    folder = Path(arguments.get("out") or config.run_dir)
    require_folder(folder)
    return Prepared(job=job, config=config, arguments=arguments, folder=folder)


def launch(prepared: Prepared) -> None:
    """Checks and runs the job, alone in its folder where it has to be. Raises UserError, and what else ends the job."""
    job = prepared.job
    with unwrapped(prepared.folder):
        job.check(prepared.config, **prepared.arguments)
        with hold(prepared.folder) if job.alone else nullcontext(), open_console(prepared.log) as console:
            job.run(prepared.config, console, **prepared.arguments)


@contextmanager
def unwrapped(folder: Path) -> Iterator[None]:
    """Raises what ends a job as itself: the first error of a group. A mistake that was found before the job wrote
    anything leaves no folder."""
    fresh = not folder.exists()
    try:
        yield
    except BaseException as raised:
        error = innermost(raised)
        if isinstance(error, UserError) and fresh and _holds_logs_at_most(folder):
            shutil.rmtree(folder)
        if error is raised:
            raise
        raise error from raised


def _holds_logs_at_most(folder: Path) -> bool:
    return folder.is_dir() and {path.name for path in folder.iterdir()} <= {"logs"}


def innermost(error: BaseException) -> BaseException:
    """The first error of a group of errors, which is what a task group raises; else the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
