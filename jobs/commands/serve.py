"""`coa serve`: a model behind HTTP, as an agent with its tools and as the model alone."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.commands.command import Job

if TYPE_CHECKING:
    from jobs.commands.command import Demands
    from jobs.recipe.schema import Recipe
    from jobs.run.console import Console
    from jobs.run.run_dir import RunDir


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, help="model directory, Hugging Face layout")
    parser.add_argument("--out", type=Path, default=Path("runs/serve"), help="where logs go")


def check(config: Recipe, *, model: Path, out: Path, overrides: Sequence[str] = ()) -> None:
    from jobs.run.agent_file import as_trained
    from jobs.stages.serve import check_serving

    check_serving(as_trained(config, model, out, overrides).serving)


def run(config: Recipe, console: Console, *, model: Path, out: Path, overrides: Sequence[str] = ()) -> None:
    from jobs.run.agent_file import as_trained
    from jobs.run.session import in_session
    from jobs.stages.serve import serve_model

    async def body(run: RunDir) -> None:
        await serve_model(run, model)

    in_session(as_trained(config, model, out, overrides), console, body, demands=demands(config).values())


def demands(config: Recipe) -> Demands:
    from cluster.resources import engine_demands

    return {"serve": engine_demands(config.placement)}


COMMAND = Job(
    name="serve",
    help="serve a model over HTTP",
    check=check,
    run=run,
    arguments=arguments,
    demands=demands,
    of_model=True,
)
