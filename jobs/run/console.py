"""What the user sees while a job runs: a line per stage, tables at the end, and no output of libraries.

`open_console` keeps private duplicates of the terminal's stdout and stderr and sends descriptors 1 and 2 to the
run's log, so that whatever any library prints, in Python or C, lands there.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from rich import box
from rich.console import Console as Terminal
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coa.reporting.pace import Pace
from coa.reporting.readable import clock

PLAIN_EVERY_S = 5.0
"""Seconds between two lines of a stage if stdout is not a terminal."""
PLAIN_WIDTH = 80
BAR_WIDTH = 10
REDRAWS_S = 4

Field = float | int | str


def show_fields(fields: Mapping[str, Field], width: int) -> str:
    """As many fields as fit, floats with three digits: "reward 0.71  staleness 1"."""
    shown = ""
    for name, value in fields.items():
        text = f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        longer = f"{shown}  {text}" if shown else text
        if len(longer) > width:
            break
        shown = longer
    return shown


class Stage:
    """The line of one stage: its progress and its fields. A field stays until it is set again."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name, self.total, self.done = name, total, 0
        self.fields: dict[str, Field] = {}
        self.doing = ""
        self.started = time.monotonic()
        self.ended = False
        self._pace = Pace()

    def update(self, done: int | None = None, total: int | None = None, **fields: Field) -> None:
        """done: the total so far, not the increment. fields: further values to show."""
        if done is not None:
            self.done = done
            self._pace.mark(done, time.monotonic())
        self.total = self.total if total is None else total
        self.fields |= fields
        self.doing = ""

    def phase(self, doing: str) -> None:
        """Shows what the stage does or waits for, in place of the fields, until the next update."""
        self.doing = doing

    def line(self, width: int) -> str:
        """The whole line in at most `width` columns."""
        name = f"{self.name:<12} "
        return f"{name}{self.progress(width - len(name))}".rstrip()

    def progress(self, width: int) -> str:
        """The line without the name: count, time, time left, and as much of the rest as fits."""
        count = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}" if self.done else ""
        now = time.monotonic()
        head = f"{count:<7} {clock(now - self.started):>5}"
        left = None if self.total is None or self.ended else self._pace.left(self.total, now)
        if left is not None and self.done < (self.total or 0):
            head += f"  {f'~{clock(left)} left':<10}"
        room = width - len(head) - 2
        return f"{head}  {shorten(self.doing, room) if self.doing else show_fields(self.fields, room)}".rstrip()


def shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: max(0, width - 1)]}…"


class Console:
    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._err = err
        live = out.isatty()
        width = os.get_terminal_size(out.fileno()).columns if live else 0
        self._terminal = Terminal(file=out, width=width or PLAIN_WIDTH, highlight=False, emoji=False)

    def say(self, text: str) -> None:
        self._terminal.print(text, markup=False, soft_wrap=True)

    def error(self, text: str) -> None:
        print(text, file=self._err, flush=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """The first column is left-aligned text; floats have three digits. Cells that are too wide are wrapped."""
        table = Table(
            title=title,
            title_justify="left",
            title_style="bold",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
        )
        for index, column in enumerate(columns):
            table.add_column(column, justify="right" if index else "left", overflow="fold")
        for row in rows:
            cells = (f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row)
            table.add_row(*(Text(cell) for cell in cells))
        self._terminal.print(table)

    @contextmanager
    def stage(self, name: str, total: int | None = None) -> Iterator[Stage]:
        """A live line while the stage runs; one lasting line when it ends, which says so if it failed."""
        stage = Stage(name, total)
        try:
            with self._shown(stage):
                yield stage
        except BaseException:
            stage.name = f"{name} (stopped)"
            raise
        else:
            stage.phase("")  # the last line shows the results
        finally:
            stage.ended = True
            self.say(stage.line(self._terminal.width))

    @contextmanager
    def waiting(self, name: str, doing: str) -> Iterator[None]:
        """A live line during work between stages; it disappears at the end."""
        stage = Stage(name, None)
        stage.phase(doing)
        with self._shown(stage):
            yield

    @contextmanager
    def _shown(self, stage: Stage) -> Iterator[None]:
        """Shows the stage's line: redrawn on a terminal, and elsewhere printed every PLAIN_EVERY_S seconds."""
        if self._terminal.is_terminal:
            with Live(
                get_renderable=lambda: live_line(stage, self._terminal.width),
                console=self._terminal,
                refresh_per_second=REDRAWS_S,
                transient=True,
                redirect_stdout=False,
                redirect_stderr=False,
            ):
                yield
            return
        ended = threading.Event()

        def lines() -> None:
            while not ended.wait(PLAIN_EVERY_S):
                self.say(stage.line(self._terminal.width))

        ticker = threading.Thread(target=lines, name=f"console-{stage.name}", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()


def live_line(stage: Stage, width: int) -> Table:
    """The stage's name, a progress bar (pulsing if the total is unknown), and its fields."""
    bar = ProgressBar(total=stage.total, completed=stage.done, width=BAR_WIDTH, pulse=stage.total is None)
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(Text(f"{stage.name:<12}"), bar, Text(stage.progress(width - BAR_WIDTH - 15), no_wrap=True))
    return line


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
