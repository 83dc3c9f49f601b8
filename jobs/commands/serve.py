"""`coa serve`: serves a model over HTTP, as an agent with its tools and as the model alone."""

import gc
import os
from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from cluster.resources import engine_demands
from coa.serving.following import caution_of, start_of
from jobs.commands.command import Demands, Job, local_path
from jobs.recipe.checks import found_of, refuse_program
from jobs.recipe.findings import Findings
from jobs.recipe.needs import tools_of
from jobs.recipe.schema import Recipe
from jobs.recipe.worlds import world_of
from jobs.run.agent_file import as_trained, fill_in_names
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.run.session import in_session


def arguments(parser: ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--model", type=local_path, help="model directory, Hugging Face layout")
    which.add_argument(
        "--follow",
        type=local_path,
        metavar="RUN",
        help="folder of a run that is still training: serves its newest weights",
    )
    parser.add_argument("--out", type=local_path, default=Path("runs/serve"), help="folder of the logs (%(default)s)")


def check(
    config: Recipe, *, model: Path | None, follow: Path | None, out: Path, overrides: Sequence[str] = ()
) -> Findings:
    from jobs.stages.serve import check_serving

    found, folder = _served(config, model, follow, out, overrides)
    check_serving(found.serving)
    refuse_program(found)
    return found_of(folder, (), found, tools_of(fill_in_names(found, folder, world_of(found)).profiles))


def run(
    config: Recipe,
    console: Console,
    *,
    model: Path | None,
    follow: Path | None,
    out: Path,
    overrides: Sequence[str] = (),
) -> None:
    from jobs.stages.serve import serve_model

    found, folder = _served(config, model, follow, out, overrides)
    if follow is not None and (caution := caution_of(follow)):
        console.say(caution)

    async def body(run: RunDir) -> None:
        await serve_model(run, folder)

    # By default Ray's processes give way to every other of the machine, and answers wait for whatever else it does.
    os.environ.setdefault("RAY_worker_niceness", "0")
    try:
        in_session(found, console, body, demands=demands(config).values(), model=folder)
    finally:
        # Without this, the garbage collection at Python's exit takes a second or two.
        gc.freeze()


def _served(
    config: Recipe, model: Path | None, follow: Path | None, out: Path, overrides: Sequence[str]
) -> tuple[Recipe, Path]:
    """The settings of the server, and the folder that it starts with."""
    if model is not None:
        return as_trained(config, model, out, overrides), model
    assert follow is not None
    folder = start_of(follow)
    found = as_trained(config, folder, out, overrides)
    named = found.serving.name or follow.resolve().name
    serving = replace(found.serving, follow=follow.resolve(), name=named)
    return replace(found, serving=serving), folder


def demands(config: Recipe) -> Demands:
    return {"serve": engine_demands(config.placement)}


COMMAND = Job(
    name="serve",
    check=check,
    run=run,
    arguments=arguments,
    demands=demands,
    of_model=True,
    alone=False,  # it writes nothing but a log
    asks=False,  # it starts, and waits, while a tool's service is down
)
