"""The command line: the table of commands, and the place where failures become messages of one line.

    coa train|distill|sft|rl --recipe NAME [key=value ...]     jobs of a run directory
    coa evaluate|select|ask|serve --model DIR ...              jobs with a model
    coa plan --recipe NAME --cluster 4x8xH200                  what would fit, and how fast it would be
    coa ledger|replay RUN ...                                  checks of a run's reinforcement
    coa chaos --recipe NAME --kills N --seed N ...             reinforcement under kills
    coa export|record|import|show|recipe|benchmarks|doctor ...     tools
    coa submit --address URL COMMAND ...                       any of these, on a cluster

Exit status: 0 done, 1 a defect or a failure of the system, 2 a user's mistake, 130 interrupted.
"""

import argparse
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from coa import __version__
from coa.errors import UserError
from jobs.commands import (
    distill,
    evaluate,
    export,
    import_runs,
    keys,
    record,
    rl,
    select,
    serve,
    sft,
    submit,
    train,
)
from jobs.commands.ask import command as ask
from jobs.commands.command import Command, Job
from jobs.commands.doctor import command as doctor
from jobs.commands.plan import command as plan
from jobs.commands.reference import benchmarks, recipe
from jobs.commands.runs import chaos, ledger, replay, show

COMMANDS: dict[str, Command] = {
    module.COMMAND.name: module.COMMAND
    for module in (
        *(train, distill, sft, rl, evaluate, select, ask, serve),
        *(plan, ledger, replay, chaos, submit, export, keys, record, import_runs, show, recipe, benchmarks, doctor),
    )
}
SETTING_AS_OPTION = re.compile(r"--((?:\w+\.)+\w+|seed|run_dir)(?:=(.*))?", re.DOTALL)
RECIPES = Path(__file__).parent / "recipes"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    try:
        command, options = parse(arguments)
        if isinstance(command, Job):
            return _run(command, options)
        status = command.run(**options)
        return status if isinstance(status, int) else 0
    except UserError as error:
        # An error that was raised in a Ray actor arrives wrapped, with a traceback in its text.
        print(f"coa: {getattr(error, 'cause', error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted; the same command resumes", file=sys.stderr)
        return 130


def parse(arguments: Sequence[str] | None = None) -> tuple[Command, dict[str, Any]]:
    """The command and its arguments by name; raises UserError for unknown arguments."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = _parser()
    parsed, unknown = parser.parse_known_args(words)
    for word in unknown:
        if found := SETTING_AS_OPTION.fullmatch(word):
            after = words[words.index(word) + 1 :][:1]
            following = next((one for one in after if not one.startswith("-")), "VALUE")
            raise UserError(f"{word}: a setting is written without dashes, {found[1]}={found[2] or following}")
    if unknown:
        raise UserError(f"unknown options: {' '.join(unknown)} (see coa {parsed.command} --help)")
    options = vars(parsed)
    return COMMANDS[options.pop("command")], options


def _run(job: Job, options: Mapping[str, Any]) -> int:
    from jobs.launch import launch, prepare

    options = dict(options)
    dry_run = options.pop("dry_run", False)
    prepared = prepare(job, options)
    if dry_run:
        show_plan(prepared.config, job)
        return 0
    try:
        launch(prepared)
        return 0
    except UserError:
        raise
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1]
        where = f" (see {prepared.log})" if _logged(prepared.log) else ""
        print(f"coa: {job.name} failed: {type(error).__name__}: {reason[:200]}{where}", file=sys.stderr)
        return 1


def _logged(log: Path) -> bool:
    """Appends the traceback of the current exception to the log; returns False if the disk fails, too."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as file:
            traceback.print_exc(file=file)
    except OSError:
        return False
    return True


def show_plan(config: Any, job: Job) -> None:
    from jobs.recipe.dry_run import dry_run
    from jobs.run.console import Console

    dry_run(config, job, Console(sys.stdout, sys.stderr))


def find_recipe(name: str) -> Path:
    """A recipe of this package by name, or a file by path; raises UserError with the known names."""
    path = Path(name)
    if path.suffix not in ("", ".yaml", ".yml", ".json"):
        raise UserError(f"recipe {name}: a recipe is a YAML file, whose name ends in .yaml or .yml")
    if path.suffix or "/" in name:
        return path
    path = RECIPES / f"{name}.yaml"
    if not path.is_file():
        known = ", ".join(sorted(recipe.stem for recipe in RECIPES.glob("*.yaml")))
        raise UserError(
            f"no recipe {name}: known are {known}; a file of your own is given by its path, such as ./mine.yaml"
        )
    return path


class _Parser(argparse.ArgumentParser):
    """A parser that raises a UserError of one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="coa", description="Trains agent foundation models (Chain-of-Agents).", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"coa {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in COMMANDS.items():
        one = commands.add_parser(
            name,
            help=command.help,
            description=f"coa {name}: {command.help}",
            epilog=command.epilog or None,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        command.arguments(one)  # a command's own positional arguments come before the overrides
        if isinstance(command, Job):
            _add_recipe(one, command)
    return parser


def _add_recipe(parser: argparse.ArgumentParser, job: Job) -> None:
    parser.add_argument("--recipe", required=not job.of_model, help="name of a recipe (such as tiny), or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")
    if not job.of_model:
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, and start nothing")


if __name__ == "__main__":
    sys.exit(main())
