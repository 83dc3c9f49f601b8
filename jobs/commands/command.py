"""The types of commands; their table is in `jobs.cli`.

A command's file is imported when the command is called, and for its own `--help`: so what loads Ray, PyTorch or vLLM is
imported inside of its functions.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coa.errors import UserError
from coa.paths import local

if TYPE_CHECKING:
    from cluster.resources import Demand
    from jobs.recipe.findings import Findings
    from jobs.recipe.schema import Recipe

Demands = Mapping[str, "list[Demand]"]
"""The cluster resources that are used at the same time, by stage."""
Parse = Callable[[Sequence[str]], "tuple[Command, dict[str, Any]]"]
"""The words of a command line as a command and its arguments by name; raises UserError."""


def no_arguments(parser: ArgumentParser) -> None:
    """Adds nothing, for a command without arguments of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command without a recipe and without a run directory."""

    name: str
    run: Callable[..., int | None]
    """Called as run(**arguments); returns the exit status, or None for 0. That of a job is called as run(config,
    console, **arguments) and returns None."""
    arguments: Callable[[ArgumentParser], None] = no_arguments
    """Adds the command's own arguments to its parser."""
    epilog: str = ""
    """The last paragraph of its help."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job(Command):
    """A command that follows a recipe."""

    check: Callable[..., Findings]
    """Called as check(config, **arguments); returns what was looked at. Raises UserError before anything is written."""
    stages: tuple[str, ...] = ()
    """Its stages, by name; each writes `checkpoints/NAME.json` when it is finished."""
    demands: Callable[[Recipe], Demands]
    """The cluster resources that it needs."""
    of_model: bool = False
    """Whether the job works on a model's folder. Then no recipe is required, and overrides take precedence over the
    model's `agent.json` and `world.json`."""
    alone: bool = True
    """Whether no other command may work in its folder at the same time."""
    asks: bool = True
    """Whether each service that it will use gets one request before anything starts."""
    folder: Callable[[str | None, Mapping[str, Any], Sequence[str]], Path] | None = None
    """Called as folder(recipe, arguments, overrides); returns the job's folder if `out` is None."""


def positive(text: str) -> int:
    """The type of an argument that is a number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def local_path(text: str) -> Path:
    """The type of an argument that is a path on this machine."""
    try:
        return Path(local(text, "it"))
    except UserError as error:
        raise ArgumentTypeError(str(error)) from error


def retry_failed(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--retry-failed",
        dest="said",
        action="append_const",
        const="distill.retry_failed=true",
        help="try the team runs in teachers/failed.jsonl again",
    )


TASKS_HELP = """\
--tasks is one of
  tasks.jsonl                     a file: .jsonl, .json, .parquet, .csv or .tsv; or a folder that holds a data set
  aime24                          a published benchmark, fetched from the hub (`coa evaluate --benchmarks`)
  math500=/data/math500.parquet   a file or folder that holds rows of that benchmark

A benchmark comes with its profile, grader, metric, number of samples, temperature, top-p, top-k and number of turns.
evaluation.samples, .temperature, .top_p, .top_k and .max_turns, set here or in the recipe, take precedence over the
benchmark's. Tasks of no benchmark are attempted once greedily, and evaluation.samples times (4) with sampling.

Prompt format, limits and world are those in the model's own agent.json and world.json: a recipe's section `agent` is
not used, but agent.KEY=VALUE here is."""


def model_arguments(parser: ArgumentParser, out: str | None, *, own_tasks: bool = False) -> None:
    """The arguments of a job with a model; out: the default folder of the results, None for one of the job's
    choice (`Job.folder`); own_tasks: whether held-out tasks of the model's world are taken if none are named."""
    parser.add_argument("--model", type=local_path, required=True, help="model directory, Hugging Face layout")
    otherwise = "; without it, held-out tasks of the model's world" if own_tasks else ""
    parser.add_argument(
        "--tasks", required=not own_tasks, help=f"a file, a benchmark's name, or NAME=PATH; see below{otherwise}"
    )
    parser.add_argument("--rows", type=positive, help="only the first N tasks")
    parser.add_argument("--out", type=local_path, default=out and Path(out), help="folder of the results")
