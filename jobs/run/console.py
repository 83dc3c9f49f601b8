"""The terminal while a job runs: a line per stage, tables at the end, and no output of libraries.

`open_console` keeps private duplicates of the terminal's stdout and stderr and sends descriptors 1 and 2 to the
run's log, so that whatever any library prints, in Python or C, lands there.

On a terminal, a stage has a live line. Elsewhere it has a line a minute, and one soon after it begins something new;
no line is cut, since a log has no width.
"""

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rich import box
from rich.console import Console as RichConsole
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from coa.reporting.boundary import SinkBoundary
from coa.reporting.pace import Pace
from coa.reporting.readable import clock
from jobs.run.streams import UNPRINTABLE, LastingStream, open_standard_streams

PLAIN_EVERY_S = 60.0
"""Seconds between two lines of a stage if stdout is not a terminal."""
PLAIN_FIRST_S = 5.0
"""Seconds after which it has a line about something that it has not done before."""
PLAIN_LOOK_S = 0.5
PLAIN_WIDTH = 80
"""Width of tables if stdout is not a terminal."""
BAR_WIDTH = 10
REDRAWS_S = 4

Field = float | int | str


def show_fields(fields: Mapping[str, Field], width: int | None) -> str:
    """As many fields as fit, all of them without a width, floats with three digits: "reward 0.71  staleness 1"."""
    shown = ""
    for name, value in fields.items():
        text = f"{name} {value:.3g}" if isinstance(value, float) else f"{name} {value}"
        longer = f"{shown}  {text}" if shown else text
        if width is not None and len(longer) > width:
            break
        shown = longer
    return shown


class Stage:
    """The line of one stage: its progress and its fields. A field stays until it is set again."""

    def __init__(self, name: str, total: int | None) -> None:
        self.name, self.total, self.done = name, total, 0
        self.fields: dict[str, Field] = {}
        self.doing, self._detail = "", ""
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
        self.phase("")

    def phase(self, doing: str, detail: str = "") -> None:
        """Shows what the stage does or waits for, in place of the fields, until the next update. detail: what changes
        about it while it goes on."""
        self.doing, self._detail = doing, detail

    @property
    def reason(self) -> str:
        """Full description of what the stage does or waits for; empty if it has fields to show."""
        return ", ".join(filter(None, (self.doing, self._detail)))

    def line(self, width: int | None = None) -> str:
        """The whole line; with a width, without the fields that do not fit. What the stage does is never cut."""
        name = f"{self.name:<12} "
        return f"{name}{self.progress(None if width is None else width - len(name))}".rstrip()

    def progress(self, width: int | None = None) -> str:
        """The line without the name: count, time, time left, and what the stage does or as many fields as fit."""
        head = self.head()
        room = None if width is None else width - len(head) - 2
        return f"{head}  {self.reason or show_fields(self.fields, room)}".rstrip()

    def head(self) -> str:
        """Count, time and time left."""
        count = f"{self.done}/{self.total}" if self.total is not None else f"{self.done}" if self.done else ""
        now = time.monotonic()
        head = f"{count:<7} {clock(now - self.started):>5}"
        left = None if self.total is None or self.ended else self._pace.seconds_left(self.total, now)
        if left is not None and self.done < (self.total or 0):
            head += f"  {f'~{clock(left)} left':<10}"
        return head


class PlainLines:
    """Decides when a stage has a line if stdout is not a terminal."""

    def __init__(self, now: float) -> None:
        self._last, self._doing, self._since = now, "", now
        self._shown: set[str] = set()

    def due(self, doing: str, now: float) -> bool:
        """Whether a line is due, which is printed then. doing: what the stage does now."""
        if doing != self._doing:
            self._doing, self._since = doing, now
        first = doing not in self._shown and now - self._since >= PLAIN_FIRST_S
        if not first and now - self._last < PLAIN_EVERY_S:
            return False
        self._last = now
        self._shown.add(doing)
        return True


class Terminal(RichConsole):
    """A console of rich that leaves a broken pipe to its caller, where rich ends the process."""

    def on_broken_pipe(self) -> None:
        raise


class Console:
    def __init__(self, out: TextIO, err: TextIO) -> None:
        self._err = err
        live = out.isatty()
        width = os.get_terminal_size(out.fileno()).columns if live else 0
        self._terminal = Terminal(file=out, width=width or PLAIN_WIDTH, highlight=False, emoji=False)
        self.boundary = SinkBoundary(self.say)
        """Boundary of the job's other sinks, such as gauges and pages."""

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
            with self._show_line(stage):
                yield stage
        except BaseException:
            stage.name = f"{name} (stopped)"
            raise
        else:
            stage.phase("")  # the last line shows the results
        finally:
            stage.ended = True
            self.say(stage.line(self._width))

    @contextmanager
    def waiting(self, name: str, doing: str) -> Iterator[None]:
        """A live line during work between stages; it disappears at the end."""
        stage = Stage(name, None)
        stage.phase(doing)
        with self._show_line(stage):
            yield

    @property
    def _width(self) -> int | None:
        return self._terminal.width if self._terminal.is_terminal else None

    @contextmanager
    def _show_line(self, stage: Stage) -> Iterator[None]:
        """Shows the stage's line: redrawn on a terminal, and elsewhere printed now and then."""
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
        ended, due = threading.Event(), PlainLines(time.monotonic()).due

        def lines() -> None:
            while not ended.wait(min(PLAIN_LOOK_S, PLAIN_EVERY_S)):
                if due(stage.doing, time.monotonic()):
                    self.say(stage.line())

        ticker = threading.Thread(target=lines, name=f"console-{stage.name}", daemon=True)
        ticker.start()
        try:
            yield
        finally:
            ended.set()
            ticker.join()


def live_line(stage: Stage, width: int) -> Group:
    """The stage's name, a progress bar (pulsing if the total is unknown), and its fields; what it does goes on below if
    it is too long."""
    bar = ProgressBar(total=stage.total, completed=stage.done, width=BAR_WIDTH, pulse=stage.total is None)
    room = width - BAR_WIDTH - 15
    text = stage.progress(room)
    fits = len(text) <= room
    line = Table.grid(padding=(0, 1, 0, 0))
    line.add_row(Text(f"{stage.name:<12}"), bar, Text(text if fits else stage.head(), no_wrap=True))
    return Group(line, *([] if fits else [Text(stage.reason)]))


@contextmanager
def open_console(log: Path) -> Iterator[Console]:
    """A console on the terminal while descriptors 1 and 2 append to `log`; both are restored at the end. Where the
    terminal can't be written to any more, the console is silent, and says so once on the other stream."""
    log.parent.mkdir(parents=True, exist_ok=True)
    open_standard_streams()
    encodings = [getattr(stream, "encoding", None) or "utf-8" for stream in (sys.stdout, sys.stderr)]
    flush_standard_streams()
    files = [
        os.fdopen(os.dup(number), "w", buffering=1, encoding=encoding, errors=UNPRINTABLE)
        for number, encoding in zip((1, 2), encodings, strict=True)
    ]
    with log.open("ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    err: Any = LastingStream(files[1], partial(SinkBoundary().attempt, "stderr"))
    out: Any = LastingStream(files[0], partial(SinkBoundary(partial(print, file=err)).attempt, "stdout"))
    try:
        yield Console(out, err)
    finally:
        flush_standard_streams()
        for number, one in zip((1, 2), files, strict=True):
            os.dup2(one.fileno(), number)
            with suppress(OSError):  # what is left of a stream that failed
                one.close()


def flush_standard_streams() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # nobody reads it any more
            stream.flush()
