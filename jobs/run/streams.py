"""Standard streams that every command can write to, whatever has started it, and whoever reads them."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO

UNPRINTABLE = "backslashreplace"
"""How characters are shown that a stream's encoding does not have."""


class LastingStream:
    """A text stream that can end before its writer: `attempt` takes the failure, and what is written later is lost."""

    def __init__(self, file: TextIO, attempt: Callable[[Callable[[], object]], object]) -> None:
        self._file, self._attempt = file, attempt
        self.encoding, self.isatty, self.fileno = file.encoding, file.isatty, file.fileno

    def write(self, text: str) -> int:
        self._attempt(lambda: self._file.write(text))
        return len(text)

    def flush(self) -> None:
        self._attempt(self._file.flush)


def open_standard_streams() -> None:
    """Opens the null device in place of standard streams that are closed, whose numbers files would get otherwise, and
    makes those that can't encode a character show its number."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors=UNPRINTABLE)


@contextmanager
def noted_stdout(failed: list[OSError]) -> Iterator[None]:
    """Within the context, what keeps stdout from being written to is put into `failed`, whoever takes the exception.
    Afterwards, the null device takes what is left of a stream that failed."""
    out: Any = sys.stdout

    def attempt(work: Callable[[], object]) -> None:
        try:
            work()
        except OSError as error:
            failed.append(error)
            raise

    noted: Any = LastingStream(out, attempt)
    sys.stdout = noted
    try:
        yield
    finally:
        with suppress(OSError):
            noted.flush()
        sys.stdout = out
        if failed:
            silence(out)


def silence(stream: TextIO) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
