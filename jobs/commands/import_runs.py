"""`coa import`: runs of other agent systems, recorded or from their own logs, as transcripts.

    coa import --runs recorded --tasks tasks.jsonl --profile mhqa --out imported

The transcripts are not graded here, but by the command that uses them.
"""

import sys
from argparse import ArgumentParser
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from coa.agent.profiles import PROFILES
from coa.agent.profiles import profile as find_profile
from coa.distill import to_chain
from coa.distill.sources import FORMATS, Refusal, detect, import_runs, read_tools
from coa.errors import UserError
from coa.storage.jsonl import write_lines
from coa.tasks.loading import load
from coa.teams.store import write_transcripts
from coa.teams.transcript import Ending, Graded, Transcript
from jobs.commands.command import Command, local_path
from jobs.run.console import Terminal

REFUSED = "refused.jsonl"
"""File beside the transcripts that lists each refused run, where it was found, and why it was refused."""
WIDTH = 120
"""Width of the table, in columns, if stdout is not a terminal."""


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--format",
        dest="form",
        help="recorded, smolagents, oagents, openai, sharegpt, glaive or alpaca; without it, detected",
    )
    parser.add_argument("--runs", type=local_path, required=True, help="a file or folder of recorded sessions or logs")
    parser.add_argument("--tasks", required=True, help="the tasks that were worked on, as for `evaluate`")
    parser.add_argument("--profile", help="profile of all runs, in place of the tasks' own")
    parser.add_argument("--model", default="", help="name of the model that played the runs, if their logs lack it")
    parser.add_argument("--tools", type=local_path, help="YAML or JSON file that maps names of their tools to tags")
    parser.add_argument("--out", type=local_path, required=True, help="folder of the transcripts")


def run(
    form: str | None,
    runs: Path,
    tasks: str,
    out: Path,
    *,
    profile: str | None = None,
    model: str = "",
    tools: Path | None = None,
) -> Path:
    """Returns the file that was written. Raises UserError for a user's mistake, or if no run could be imported.

    form: None to detect it; tasks: as `coa.tasks.loading.load` reads it; profile: of all runs, in place of the tasks'
    own; it also determines the grader of open questions that name none; model: of runs that name none; tools: see
    `coa.distill.sources.tools`.
    """
    form = detect(runs) if form is None else form.lower()
    FORMATS.find(form)
    known = load(tasks) if profile is None else load(tasks, profile=find_profile(profile).name, overrule=True)
    results = tuple(import_runs(form, runs, known, read_tools(tools), model))
    imported = [result for result in results if isinstance(result, Transcript)]
    refused = [result for result in results if isinstance(result, Refusal)]
    _show(imported, refused)
    if refused:
        out.mkdir(parents=True, exist_ok=True)
        write_lines(out / REFUSED, ({"where": o.where, "reason": o.reason.value, "detail": o.detail} for o in refused))
    else:
        (out / REFUSED).unlink(missing_ok=True)
    if not imported:
        raise UserError(f"{runs}: none of the {len(refused)} runs there could be imported as {form}")
    path = out / f"{form}.parquet"
    write_transcripts(path, (Graded(transcript, None) for transcript in imported))
    print(f"{len(imported)} transcripts in {path}")
    return path


def _show(imported: list[Transcript], refused: list[Refusal]) -> None:
    table = Table(box=box.SIMPLE_HEAD)
    table.add_column("runs")
    table.add_column("", justify="right")
    table.add_column("for example", overflow="fold")
    for ending, count in Counter(transcript.ending for transcript in imported).items():
        table.add_row(f"imported: {ending.value}", str(count), "")
    broken = _broken(imported)
    for (profile, transition), tasks in broken.items():
        table.add_row(f"  of these, `{profile}` forbids {transition}", str(len(tasks)), f"task {tasks[0]}")
    for reason, count in Counter(refusal.reason for refusal in refused).most_common():
        first = next(refusal for refusal in refused if refusal.reason is reason)
        example = f"{first.detail} ({first.where})" if first.detail else first.where
        table.add_row(f"refused: {reason.value}", str(count), example)
    console = Terminal(width=None if sys.stdout.isatty() else WIDTH, highlight=False, emoji=False, markup=False)
    console.print(table)
    if broken:
        console.print(_advice(imported, sum(map(len, broken.values()))))


def _broken(imported: list[Transcript]) -> dict[tuple[str, str], list[str]]:
    """Task ids of the answered runs that the filter will drop, by profile and forbidden transition."""
    found: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for one in imported:
        transition = find_profile(one.task.profile).broken_transition(to_chain(one))
        if one.ending is Ending.ANSWERED and transition is not None:
            found[one.task.profile, transition].append(one.task.id)
    return dict(sorted(found.items(), key=lambda entry: -len(entry[1])))


def _advice(imported: list[Transcript], broken: int) -> str:
    """Advice about runs that break their profile's table."""
    chains = [to_chain(one) for one in imported]
    fits = {name: sum(map(profile.transitions_hold, chains)) for name, profile in PROFILES.items()}
    best = max(fits, key=lambda name: fits[name])
    return (
        f"{broken} of {len(imported)} runs break their profile's table, and the filter drops them; under "
        f"--profile {best}, {fits[best]} fit."
    )


def command(**options: Any) -> None:
    run(**options)


COMMAND = Command(name="import", run=command, arguments=arguments)
