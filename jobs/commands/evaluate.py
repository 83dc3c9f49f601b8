"""`coa evaluate`: a model measured on a published benchmark or on tasks of a user's."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.commands.command import TASKS_HELP, Job, model_arguments

if TYPE_CHECKING:
    from jobs.commands.command import Demands
    from jobs.recipe.schema import Recipe
    from jobs.run.console import Console
    from jobs.run.run_dir import RunDir


def arguments(parser: ArgumentParser) -> None:
    model_arguments(parser, "runs/evaluate")


def check(
    config: Recipe, *, model: Path, tasks: str, rows: int | None, out: Path, overrides: Sequence[str] = ()
) -> None:
    from coa.tasks.loading import load
    from jobs.recipe.checks import check_attempts
    from jobs.run.agent_file import as_trained

    as_asked = as_trained(config, model, out, overrides)
    loaded = load(tasks, profile=config.tasks.profile, grader=config.tasks.grader, rows=rows)
    check_attempts(model, loaded, as_asked)


def run(
    config: Recipe,
    console: Console,
    *,
    model: Path,
    tasks: str,
    rows: int | None,
    out: Path,
    overrides: Sequence[str] = (),
) -> None:
    from coa.tasks.loading import load
    from jobs.run.agent_file import as_trained, caution_about_agent
    from jobs.run.session import in_session
    from jobs.stages.evaluate import evaluate_model

    loaded = load(tasks, profile=config.tasks.profile, grader=config.tasks.grader, rows=rows)

    async def body(run: RunDir) -> None:
        if caution := caution_about_agent(config, model, overrides):
            console.say(caution)
        await evaluate_model(run, model, tasks, loaded, first_rows=rows is not None and len(loaded) == rows)

    in_session(as_trained(config, model, out, overrides), console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    from cluster.resources import engine_demands

    return {"evaluate": engine_demands(config.placement)}


COMMAND = Job(
    name="evaluate",
    help="measure a model on tasks",
    check=check,
    run=run,
    arguments=arguments,
    demands=demands,
    of_model=True,
    epilog=TASKS_HELP,
)
