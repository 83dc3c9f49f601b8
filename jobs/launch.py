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
from jobs.recipe.findings import services_in
from jobs.run import surroundings
from jobs.run.console import open_console
from jobs.run.lease import hold, require_folder

if TYPE_CHECKING:
    from jobs.recipe.schema import Recipe
    from jobs.run.mirrored import Lost


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job with its settings and its folder."""

    job: Job
    config: "Recipe"
    arguments: Mapping[str, Any]
    """Keyword arguments of the job's `check` and `run`."""
    folder: Path

    @property
    def log(self) -> Path:
        return self.folder / "logs" / "driver.log"


def prepare(job: Job, options: Mapping[str, Any]) -> Prepared:
    """Loads a job's settings and determines its folder, without writing anything.

    options: `recipe`, `overrides`, `said`, `quick`, and the job's own arguments, as the command line reads them. Raises
    UserError for invalid settings, and for a folder that can't be written to.
    """
    from jobs.recipe.find import find_recipe
    from jobs.recipe.quick import quick
    from jobs.recipe.schema import Recipe

    arguments = dict(options)
    recipe = arguments.pop("recipe")
    file = find_recipe(recipe) if recipe else None
    overrides = (*arguments.pop("overrides"), *(arguments.pop("said", None) or ()))
    if arguments.pop("quick", False):
        overrides = (*quick(file), *overrides)
    config = load(Recipe, file, overrides)
    if job.of_model:
        arguments["overrides"] = overrides
    if job.folder is not None and arguments["out"] is None:
        arguments["out"] = job.folder(recipe, arguments, overrides)
    folder = Path(arguments.get("out") or config.run_dir)
    require_folder(folder)
    return Prepared(job=job, config=config, arguments=arguments, folder=folder)


def launch(prepared: Prepared) -> None:
    """Checks and runs the job, with a lease on its folder if `job.alone`. Raises UserError, or the error that ended the
    job."""
    job = prepared.job
    surroundings.prepare()
    with unwrapped(prepared.folder):
        fetch_lost(prepared)
        findings = job.check(prepared.config, **prepared.arguments)
        with hold(prepared.folder) if job.alone else nullcontext(), open_console(prepared.log) as console:
            for found in findings:
                if found.caution:
                    console.say(found.caution)
            if job.asks and (services := services_in(findings)):
                from jobs.recipe.services import ask_all

                ask_all(services, console)
            job.run(prepared.config, console, **prepared.arguments)


def fetch_lost(prepared: Prepared) -> None:
    """Makes the run's folder anew if it is lost and `checkpoints.storage` has a copy of it."""
    if (lost := lost_of(prepared)) is not None:
        lost.check()
        with hold(prepared.folder), open_console(prepared.log) as console:
            lost.fetch(console)


def lost_of(prepared: Prepared) -> "Lost | None":
    """The run in whose folder the job works, if that folder is lost and `checkpoints.storage` has a copy of it."""
    from jobs.run.mirrored import lost_run

    works_in_it = prepared.folder == Path(prepared.config.run_dir)
    return lost_run(prepared.config) if works_in_it else None


@contextmanager
def unwrapped(folder: Path) -> Iterator[None]:
    """Raises the first error of an exception group in place of the group. After a UserError, removes the job's folder
    if it is new and holds nothing but logs."""
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
