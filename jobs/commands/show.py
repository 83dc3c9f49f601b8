"""`coa show`: prints chains of transcripts or of a data set, with the speaker of each span and what is trained.

    coa show imported --task t7
    ▌planner    <plan> find the town first
    ▌searcher   <wiki_search> Nora Lind
     tool       <observation> Nora Lind was born in Berg.

A bar marks spans that the policy is trained on; results of tools have none. On a terminal each speaker has a colour.
"""

import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rich.table import Table
from rich.text import Text

from coa.agent.grammar import TAGS, Kind, Span, parse
from coa.agent.profiles import profile
from coa.distill import to_chain
from coa.distill.dataset.rows import Demonstration
from coa.distill.dataset.shards import read_rows, read_rows_of, shard_paths
from coa.distill.stages import answer_pair
from coa.errors import UserError
from coa.teams.store import read_transcripts
from coa.teams.transcript import AgentStep, Graded, ToolStep, is_routing
from coa.types import Task
from jobs.commands.command import Command, local_path, positive
from jobs.run.console import Terminal

BAR, WIDTH, TOOL, USER, MODEL = "▌", 100, "tool", "user", "model"
COLOURS = ("cyan", "green", "magenta", "yellow", "blue", "red")


@dataclass(frozen=True, slots=True)
class Line:
    """A span of a chain."""

    speaker: str
    span: Span
    trained: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A run, as it is shown."""

    task: Task
    attempt: int
    about: str
    """How it ended, and where it is from."""
    answers: str
    """The answer beside the accepted ones."""
    lines: tuple[Line, ...]


def arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "path", type=local_path, help="a file or folder of transcripts, or of a data set (train-*.parquet)"
    )
    parser.add_argument("--task", help="only runs of the task with this id")
    parser.add_argument("--rows", type=positive, default=1, help="at most this many runs (1)")


def run(path: Path, *, task: str | None = None, rows: int = 1) -> None:
    """Raises UserError for a path without such runs."""
    chosen = (one for one in shown_of(path) if task is None or one.task.id == task)
    found = list(islice(chosen, rows))
    if not found:
        raise UserError(f"{path}: no run there" + (f" of the task {task}" if task is not None else ""))
    console = Terminal(width=None if sys.stdout.isatty() else WIDTH, highlight=False, emoji=False)
    for one in found:
        _print(console, one)


def shown_of(path: Path) -> Iterator[Shown]:
    """The runs of a file or folder; raises UserError for what is neither transcripts nor a data set."""
    if not path.exists():
        raise UserError(f"{path}: no such file or folder")
    if path.is_dir() and shard_paths(path):
        yield from map(_of_row, read_rows(path))
    elif path.is_file() and path.name.startswith("train-"):
        yield from map(_of_row, read_rows_of(path))
    else:
        yield from map(_of_transcript, read_transcripts(path))


def _of_row(row: Demonstration) -> Shown:
    about = f"kept, {row.copies} copies, {row.source}"
    pair = answer_pair(row.task.answers, row.chain)
    return Shown(row.task, row.attempt, about, pair, _lines(row.task, row.chain, (MODEL,) * len(row.chain)))


def _of_transcript(run: Graded) -> Shown:
    transcript, chain = run.transcript, to_chain(run.transcript)
    speakers: list[str] = []
    for step in transcript.steps:
        if step.line != transcript.winner or is_routing(step):
            continue
        if isinstance(step, AgentStep):
            speakers += [step.agent] * len(parse(step.output).chain)
        else:
            speakers.append(TOOL if isinstance(step, ToolStep) else USER)
    grade = {None: "ungraded", True: "right", False: "wrong"}[run.correct]
    broken = profile(transcript.task.profile).broken_transition(chain)
    about = f"{transcript.ending.value}, {grade}, {transcript.team}" + (f"; forbidden: {broken}" if broken else "")
    pair = answer_pair(transcript.task.answers, chain)
    return Shown(transcript.task, transcript.attempt, about, pair, _lines(transcript.task, chain, tuple(speakers)))


def _lines(task: Task, chain: tuple[Span, ...], speakers: tuple[str, ...]) -> tuple[Line, ...]:
    made = ((span, TAGS[span.tag].kind is not Kind.ENVIRONMENT) for span in chain)
    return tuple(
        Line(speaker if trained or speaker == USER else TOOL, span, trained)
        for speaker, (span, trained) in zip(speakers, made, strict=True)
    )


def _print(console: Terminal, one: Shown) -> None:
    console.print(Text(f"{one.task.id}, attempt {one.attempt}, {one.task.profile}: {one.about}", style="bold"))
    console.print(Text(one.task.question))
    speakers = [name for name in dict.fromkeys(line.speaker for line in one.lines) if name not in (TOOL, USER)]
    colours = dict(zip(speakers, COLOURS * len(speakers), strict=False))
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for line in one.lines:
        colour = colours.get(line.speaker, "dim")
        bar = BAR if line.trained else " "
        said = Text.assemble((f"<{line.span.tag}> ", f"bold {colour}"), (line.span.text, "" if line.trained else "dim"))
        table.add_row(Text(f"{bar}{line.speaker}", style=colour), said)
    console.print(table)
    if one.task.answers:
        console.print(Text(f"answer {one.answers}", style="bold"))
    console.print(Text(f"{BAR} is trained\n", style="dim"))


COMMAND = Command(name="show", run=run, arguments=arguments)
