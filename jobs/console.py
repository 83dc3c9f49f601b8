"""What a person sees while a job runs: a line per stage, tables at the end, and nothing of the libraries' chatter.

`open_console` keeps private duplicates of the terminal's stdout and stderr and sends descriptors 1 and 2 to the
run's log, so that whatever any library prints, in Python or C, lands there.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console as Terminal
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from coa.readable import duration

PLAIN_EVERY_S = 5.0
"""Least time between two lines of a stage where there is no terminal to redraw."""
PLAIN_WIDTH = 140

Field = float | int | str


def show_fields(fields: dict[str, Field]) -> str:
    """ "reward 0.71  staleness 1": floats to three digits."""
    return "  ".join(
        f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}" for name, value in fields.items()
    )


class Stage:
    """The line of one stage. Fields stay until they are given anew."""

    def __init__(self, name: str, total: int | None, draw: Callable[["Stage"], None]) -> None:
        self.name, self.total, self.done = name, total, 0
        self.fields: dict[str, Field] = {}
        self.started = time.monotonic()
        self._draw = draw

    def update(self, done: int | None = None, total: int | None = None, **fields: Field) -> None:
        """What is done so far (not what was added), and what else to show."""
        self.done = self.done if done is None else done
        self.total = self.total if total is None else total
        self.fields |= fields
        self._draw(self)

    def line(self) -> str:
        count = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}" if self.done else ""
        parts = (f"{self.name:<12}", f"{count:<9}", f"{duration(time.monotonic() - self.started):<12}")
        return f"{' '.join(parts)} {show_fields(self.fields)}".rstrip()


class Console:
    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._err = err
        live = out.isatty()
        width = os.get_terminal_size(out.fileno()).columns if live else PLAIN_WIDTH
        self._terminal = Terminal(file=out, width=width or None, highlight=False, emoji=False)

    def say(self, text: str) -> None:
        self._terminal.print(text, markup=False, soft_wrap=True)

    def error(self, text: str) -> None:
        print(text, file=self._err, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """The first column is left-aligned text; floats are shown to three digits."""
        table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left")
        for row in rows:
            table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row))
        self._terminal.print(table)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """A live line while the stage runs; one lasting line when it ends, which says so if it failed."""
        show = self._bar if self._terminal.is_terminal else self._lines
        with show(name, total) as stage:
            try:
                yield stage
            except BaseException:
                stage.name = f"{name} (stopped)"
                raise

    @contextmanager
    def _bar(self, name: str, total: int | None) -> Iterator[Stage]:
        progress = Progress(
            TextColumn("{task.description:<12}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}", markup=False),
            console=self._terminal,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        bar: TaskID = progress.add_task(name, total=total, note="")

        def draw(stage: Stage) -> None:
            progress.update(bar, completed=stage.done, total=stage.total, note=show_fields(stage.fields))

        stage = Stage(name, total, draw)
        try:
            with progress:
                yield stage
        finally:
            self.say(stage.line())

    @contextmanager
    def _lines(self, name: str, total: int | None) -> Iterator[Stage]:
        printed = time.monotonic()

        def draw(stage: Stage) -> None:
            nonlocal printed
            if time.monotonic() - printed >= PLAIN_EVERY_S:
                printed = time.monotonic()
                self.say(stage.line())

        stage = Stage(name, total, draw)
        try:
            yield stage
        finally:
            self.say(stage.line())


@contextmanager
def open_console(log: Path) -> Iterator[Console]:
    """A console on the terminal while descriptors 1 and 2 append to `log`; both are restored at the end."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    with (
        os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8") as out,
        os.fdopen(os.dup(2), "w", buffering=1, encoding="utf-8") as err,
    ):
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            yield Console(out, err)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os.dup2(out.fileno(), 1)
            os.dup2(err.fileno(), 2)
