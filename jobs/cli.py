"""The command line.

    coa train|distill|sft|rl --recipe NAME [key=value ...]     jobs of a run directory
    coa evaluate|select --model DIR --tasks WHAT ...           jobs with a model
    coa export|record|import|benchmarks ...                    tools, without a recipe

A job is a module with two functions:

    check(config, **arguments)          raises UserError before anything is written
    run(config, console, **arguments)   does the work; what it has done is kept, so the same command resumes

A tool is a module with `run(**arguments)`.

Exit status: 0 done, 1 a defect or a failure of the system, 2 a person's mistake, 130 interrupted.
"""

import argparse
import contextlib
import importlib
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coa.errors import UserError

RECIPES = Path(__file__).parent / "recipes"
RUNS = {
    "train": "distill, sft, rl, then evaluate",
    "distill": "turn multi-agent transcripts into demonstrations",
    "sft": "train on demonstrations",
    "rl": "train by reinforcement",
}
MODELS = {
    "evaluate": "measure a model on tasks",
    "select": "choose tasks for rl by how often a model solves them",
}
TOOLS = {
    "export": "write a run's data set as another trainer reads it",
    "record": "serve a model endpoint that records what agents of other systems say",
    "import": "turn runs of other systems into transcripts",
    "benchmarks": "list the published benchmarks that `evaluate` knows",
}
MODULES = {"select": "select_tasks", "import": "import_runs"}
"""Where a command's module has another name."""
TASKS_HELP = """\
--tasks is one of
  tasks.jsonl                     a file: .jsonl, .json, .parquet or .csv; or a folder that holds a data set
  aime24                          a published benchmark, fetched from the Hugging Face hub (coa benchmarks lists them)
  math500=/data/math500.parquet   a file or folder that holds rows of that benchmark

A benchmark comes with its profile, grader, metric, number of samples, temperature and top-p. evaluation.samples,
evaluation.temperature and evaluation.top_p, set here or in the recipe, win over the benchmark's. Tasks of no
benchmark are attempted once greedily and evaluation.samples times (4) sampled."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. The one place where a failure becomes a line of text."""
    options = vars(_parser().parse_args(arguments))
    command = options.pop("command")
    try:
        if command in TOOLS:
            _module(command).run(**options)
            return 0
        recipe, overrides = options.pop("recipe"), options.pop("overrides")
        return _run(command, recipe, overrides, options)
    except UserError as error:
        # One that was raised in a Ray actor arrives wrapped, and its text with a traceback.
        print(f"coa: {getattr(error, 'cause', error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return 130


def _module(command: str) -> Any:
    return importlib.import_module(f"jobs.{MODULES.get(command, command)}")


def _run(name: str, recipe: str | None, overrides: Sequence[str], options: Mapping[str, Any]) -> int:
    from coa.config import load
    from jobs.console import open_console
    from jobs.recipe import Recipe

    arguments = dict(options)
    if arguments.pop("retry_failed", False):
        overrides = [*overrides, "distill.retry_failed=true"]
    config = load(Recipe, find_recipe(recipe) if recipe else None, overrides)
    if name in MODELS:  # where they also win over what is kept beside the model
        arguments["overrides"] = tuple(overrides)
    dry_run = arguments.pop("dry_run", False)
    job = _module(name)
    if dry_run:
        show_plan(config, name, job)
        return 0
    job.check(config, **arguments)
    folder = Path(arguments.get("out") or config.run_dir)
    log, fresh = folder / "logs" / "driver.log", not folder.exists()
    try:
        with open_console(log) as console:
            job.run(config, console, **arguments)
        return 0
    except Exception as raised:
        error = innermost(raised)
        if isinstance(error, UserError):
            if fresh and [path.name for path in folder.iterdir()] == ["logs"]:
                shutil.rmtree(folder)  # the mistake was found before the job wrote anything
            raise error from None
        with contextlib.suppress(OSError), log.open("a", encoding="utf-8") as file:  # the disk may be what failed
            traceback.print_exc(file=file)
        reason = (str(error).strip().splitlines() or [""])[-1]
        print(f"coa: {name} failed: {type(error).__name__}: {reason[:200]} (see {log})", file=sys.stderr)
        return 1


def show_plan(config: Any, name: str, job: Any) -> None:
    from jobs.console import Console
    from jobs.dry_run import dry_run

    dry_run(config, name, Console(sys.stdout, sys.stderr), lambda: job.check(config))


def innermost(error: BaseException) -> BaseException:
    """The first error of a group of errors, which is what a task group raises; else the error itself."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def find_recipe(name: str) -> Path:
    """A recipe of this package by name, or a file by path; raises UserError with the known names."""
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    path = RECIPES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(recipe.stem for recipe in RECIPES.glob("*.yaml")))
        raise UserError(f"no recipe {name}: known are {known}; a file is given by its path")
    return path


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="coa", description="Trains agent foundation models (Chain-of-Agents).", allow_abbrev=False
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="|".join((*RUNS, *MODELS, *TOOLS)))

    def command(name: str, purpose: str, epilog: str | None = None) -> argparse.ArgumentParser:
        return commands.add_parser(
            name,
            help=purpose,
            description=f"coa {name}: {purpose}",
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    for name, purpose in RUNS.items():
        job = command(name, purpose)
        _add_recipe(job, required=True)
        job.add_argument("--dry-run", action="store_true", help="show what would be done, and start nothing")
        if name in ("train", "distill"):
            job.add_argument(
                "--retry-failed",
                action="store_true",
                help="try again what is in teachers/failed.jsonl",
            )
    for name, purpose in MODELS.items():
        job = command(name, purpose, TASKS_HELP)
        _add_recipe(job, required=False)
        job.add_argument("--model", type=Path, required=True, help="model directory, Hugging Face layout")
        job.add_argument("--tasks", required=True, help="a file, a benchmark's name, or NAME=PATH; see below")
        job.add_argument("--rows", type=_positive, help="only the first N tasks")
        job.add_argument("--out", type=Path, default=Path(f"runs/{name}"), help="where the results go")
        if name == "select":
            job.add_argument(
                "--mode",
                required=True,
                choices=("direct", "tuned"),
                help="direct: a base model without tools, drops what it knows; "
                "tuned: a fine-tuned model with its tools, drops what it always solves",
            )
    _add_tools(*(command(name, TOOLS[name]) for name in ("export", "record", "import")))
    command("benchmarks", TOOLS["benchmarks"])
    return parser


def _add_recipe(job: argparse.ArgumentParser, *, required: bool) -> None:
    job.add_argument("--recipe", required=required, help="name of a recipe (such as tiny) or path of a YAML file")
    job.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")


def _add_tools(
    export: argparse.ArgumentParser, record: argparse.ArgumentParser, imports: argparse.ArgumentParser
) -> None:
    export.add_argument("--run", type=Path, required=True, help="run directory")
    export.add_argument("--format", required=True, help="trl, llamafactory or alpaca")
    export.add_argument("--out", type=Path, required=True, help="a folder that is not there yet")
    record.add_argument("--upstream", required=True, help="the model's endpoint, such as http://127.0.0.1:8000/v1")
    record.add_argument("--out", type=Path, required=True, help="folder of the recorded sessions")
    record.add_argument("--host", default="127.0.0.1", help="address to serve at")
    record.add_argument("--port", type=_positive, default=8700)
    record.add_argument("--key-env", help="environment variable with the upstream's key; else the caller's")
    imports.add_argument("--format", dest="form", required=True, help="recorded, smolagents or oagents")
    imports.add_argument("--runs", type=Path, required=True, help="a file or folder of recorded sessions or logs")
    imports.add_argument("--tasks", required=True, help="the tasks that were worked on, as for `evaluate`")
    imports.add_argument("--profile", help="of all runs, whatever the tasks say")
    imports.add_argument("--tools", type=Path, help="YAML or JSON: their tools' names and ours")
    imports.add_argument("--out", type=Path, required=True, help="folder of the transcripts")


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
