"""The command line: the table of commands, and the place where failures become messages of one line.

    coa train|distill|sft|rl --recipe NAME [key=value ...]     jobs of a run directory
    coa evaluate|select|ask|serve --model DIR ...              jobs with a model
    coa plan --recipe NAME --cluster 4x8xH200                  what would fit, and how fast it would be
    coa verify RUN ...                                         checks of a run's reinforcement
    coa export|keys|record|import|show|recipe|doctor ...       tools
    coa submit --address URL COMMAND ...                       any of these, on a cluster

Exit status: 0 done, 1 a defect or a failure of the system (stdout that can't be written to among them), 2 a user's
mistake, 130 interrupted, 141 nobody reads stdout any more (`| head`), as of a program that SIGPIPE ends.
"""

import argparse
import importlib
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from coa import __version__
from coa.errors import UserError
from coa.unicode import is_whole
from jobs.commands.command import Command, Job
from jobs.run import surroundings
from jobs.run.streams import noted_stdout, open_standard_streams, silence

if TYPE_CHECKING:
    from jobs.launch import Prepared

COMMANDS = {
    "train": ("distill, sft, rl, then evaluate", "jobs.commands.train:COMMAND"),
    "distill": ("turn multi-agent transcripts into demonstrations", "jobs.commands.distill:COMMAND"),
    "sft": ("train on demonstrations", "jobs.commands.sft:COMMAND"),
    "rl": ("train by reinforcement learning", "jobs.commands.rl:COMMAND"),
    "evaluate": ("measure a model on tasks", "jobs.commands.evaluate:COMMAND"),
    "select": ("choose tasks for rl by how often a model solves them", "jobs.commands.select:COMMAND"),
    "tasks": ("make tasks of your own documents", "jobs.commands.tasks:COMMAND"),
    "ask": ("ask a model one question, and see what it does", "jobs.commands.ask.command:COMMAND"),
    "serve": ("serve a model over HTTP", "jobs.commands.serve:COMMAND"),
    "plan": (
        "show what would run where, what would not fit, and how fast it would be",
        "jobs.commands.plan.command:COMMAND",
    ),
    "verify": (
        "check that no attempt at a task is missing or counted twice, or train recorded batches again and compare",
        "jobs.commands.verify:COMMAND",
    ),
    "submit": ("run a command on a Ray cluster, or write its manifest for KubeRay", "jobs.commands.submit:COMMAND"),
    "export": ("write a run's data set in the format of another trainer", "jobs.commands.export:COMMAND"),
    "keys": ("add, list and revoke a server's API keys", "jobs.commands.keys:COMMAND"),
    "record": ("forward an agent's calls to a model endpoint, and record them", "jobs.commands.record:COMMAND"),
    "import": ("turn runs of other systems into transcripts", "jobs.commands.import_runs:COMMAND"),
    "show": ("print chains: who said what, and what is trained", "jobs.commands.show:COMMAND"),
    "recipe": ("print every setting, with its type, its default and what it does", "jobs.commands.recipe:COMMAND"),
    "doctor": ("check what this machine lacks, and say what to type", "jobs.commands.doctor.command:COMMAND"),
}
"""Each command's line in `coa --help`, and where the command is: `command_of` imports it."""
PACKAGES = ("coa", "actors", "cluster", "jobs")
SETTING_AS_OPTION = re.compile(r"--((?:\w+\.)+\w+|seed|run_dir)(?:=(.*))?", re.DOTALL)
READER_LEFT = 141
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status. arguments: None for those of this process."""
    open_standard_streams()
    failed: list[OSError] = []
    with noted_stdout(failed):
        try:
            status, ended = _status(arguments), None
        except (OSError, SystemExit) as raised:  # SystemExit: from argparse, after a help text
            status, ended = 0, raised
    if not failed:
        if ended is not None:
            raise ended
        return status
    if status:  # the command has failed, and has said why
        return status
    if isinstance(failed[0], BrokenPipeError):
        return READER_LEFT
    _say(f"coa: standard output can't be written to: {failed[0].strerror}")
    return 1


def _status(arguments: Sequence[str] | None) -> int:
    """Runs one command; its exit status, without what becomes of stdout."""
    try:
        if arguments is None:
            surroundings.in_utf8()
            surroundings.prepare()
        return _command(arguments)
    except UserError as error:
        # An error that was raised in a Ray actor arrives wrapped, with a traceback in its text.
        _say(f"coa: {getattr(error, 'cause', error)}")
        return 2
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def _say(line: str) -> None:
    """Prints a line on stderr, if that can be written to."""
    try:
        print(line, file=sys.stderr, flush=True)
    except OSError:
        silence(sys.stderr)


def _command(arguments: Sequence[str] | None) -> int:
    command, options = parse(arguments)
    if isinstance(command, Job):
        return _run(command, options)
    status = command.run(**options)
    return status if isinstance(status, int) else 0


def parse(arguments: Sequence[str] | None = None) -> tuple[Command, dict[str, Any]]:
    """The command and its arguments by name; raises UserError for unknown arguments."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    for word in words:
        if not is_whole(word):
            raise UserError(f"{word!r} is not UTF-8: give the file or folder another name")
    parser = _parser(words)
    parsed, unknown = parser.parse_known_args(words)
    if "overrides" in parsed:  # argparse takes those before an option, and leaves those behind it
        parsed.overrides += [word for word in unknown if not word.startswith("-")]
        unknown = [word for word in unknown if word.startswith("-")]
    for word in unknown:
        if found := SETTING_AS_OPTION.fullmatch(word):
            after = words[words.index(word) + 1 :][:1]
            following = next((one for one in after if not one.startswith("-")), "VALUE")
            raise UserError(f"{word}: a setting is written without dashes, {found[1]}={found[2] or following}")
    if unknown:
        raise UserError(f"unknown options: {' '.join(unknown)} (see coa {parsed.command} --help)")
    options = vars(parsed)
    return command_of(options.pop("command")), options


def command_of(name: str) -> Command:
    """Raises UserError for a command whose files are not there."""
    module, _, attribute = COMMANDS[name][1].partition(":")
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in PACKAGES:
            raise
        raise UserError(f"{error.name} is not installed, and `coa {name}` needs it") from None


def _run(job: Job, options: Mapping[str, Any]) -> int:
    from jobs.launch import launch, prepare
    from jobs.run.last_words import last_words

    options = dict(options)
    dry_run, check = options.pop("dry_run", False), options.pop("check")
    prepared = prepare(job, options)
    if dry_run or check:
        show_plan(prepared, ask=check)
        return 0
    resumes = "; the same command resumes" if job.alone else ""
    try:
        with last_words(f"coa: {job.name} was ended by Ray, of which a part is gone, or from outside{resumes}"):
            launch(prepared)
        return 0
    except UserError:
        raise
    except KeyboardInterrupt:
        if not job.alone:  # it has no folder from which it could resume
            raise
        _say(f"interrupted{resumes}")
        return INTERRUPTED
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[-1]
        where = f" (see {prepared.log})" if _logged(prepared.log) else ""
        _say(f"coa: {job.name} failed: {type(error).__name__}: {reason[:200]}{where}")
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


def show_plan(prepared: "Prepared", *, ask: bool) -> None:
    from jobs.launch import lost_of
    from jobs.recipe.dry_run import dry_run
    from jobs.run.console import Console

    console = Console(sys.stdout, sys.stderr)
    if (lost := lost_of(prepared)) is not None:
        lost.check()
        copy = f"would first fetch its copy from {lost.place}, and go on there"
        console.say(f"{prepared.folder} is lost: the command {copy}")
        return
    dry_run(prepared.config, prepared.job, console, prepared.arguments, ask=ask)


class _Parser(argparse.ArgumentParser):
    """A parser that raises a UserError of one line instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see {self.prog} --help)")


def _parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser of these words, which has the arguments of no other command than that which they call."""
    parser = _Parser(prog="coa", description="Trains agent foundation models (Chain-of-Agents).", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"coa {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    called = next((word for word in words if not word.startswith("-")), None)
    for name, (line, _) in COMMANDS.items():
        one = commands.add_parser(
            name,
            help=line,
            description=f"coa {name}: {line}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if name == called:
            command = command_of(name)
            one.epilog = command.epilog or None
            command.arguments(one)  # a command's own positional arguments come before the overrides
            if isinstance(command, Job):
                _add_recipe(one, command)
    return parser


def _add_recipe(parser: argparse.ArgumentParser, job: Job) -> None:
    parser.add_argument("--recipe", required=not job.of_model, help="name of a recipe (such as tiny), or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="overrides of the recipe")
    parser.add_argument(
        "--check",
        action="store_true",
        help="check what the command needs, with one request to each service that it will use, and start nothing",
    )
    if not job.of_model:
        parser.add_argument("--dry-run", action="store_true", help="show what would be done, and start nothing")


if __name__ == "__main__":
    sys.exit(main())
