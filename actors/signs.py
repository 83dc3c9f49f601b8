"""Signs of progress of a process that starts, and of its children: megabytes that they read, and news in their logs."""

import os
import re
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

MIB = 2**20
SLOW_S = 60.0
"""Seconds within which a process that loads something reads a megabyte. One that waits reads less."""
MOST_BYTES = MIB
"""Maximum length of the end of a log that is read at a look."""
_WORD = re.compile(rb"\w++")
_DONE = re.compile(rb"(?<![\d.])(\d++(?:\.\d++)?)\s?[%/]")
_DIGIT = re.compile(rb"\d")


class Signs:
    """Counts signs. The count never falls, though processes end."""

    def __init__(self, logs: Iterable[Path | int], clock: Callable[[], float] = time.monotonic) -> None:
        """logs: files, or descriptors of files, that the processes write to."""
        self._clock = clock
        self._logs = {log if isinstance(log, Path) else Path(f"/proc/self/fd/{log}"): 0 for log in logs}
        """Bytes of each that were read."""
        self._done: dict[bytes, float] = {}
        """The highest number, of those that say how much is done, by kind of line."""
        self._read: dict[int, tuple[int, float]] = {}
        """Bytes that a process had read at its last sign, and when that was or was given up, by process."""
        self._ours = 0
        """Bytes that this process has read in order to look."""
        self._count = 0

    def count(self, pid: int) -> int:
        """Megabytes read by the process and its children, and lines of the logs that said something new so far. A line
        that differs from earlier ones only in its numbers is new if it says that more is done, as 2/8 or 30 % do. pid:
        0 as long as there is none."""
        us = psutil.Process()
        before = _bytes_read(us)
        with suppress(psutil.Error):
            process = psutil.Process(pid or us.pid)
            for one in (process, *process.children(recursive=True)):
                self._count += self._megabytes(one.pid, _bytes_read(one) - (self._ours if one == us else 0))
        self._count += sum(map(self._news, self._logs))
        self._ours += _bytes_read(us) - before
        return self._count

    def _megabytes(self, pid: int, size: int) -> int:
        now = self._clock()
        last, since = self._read.setdefault(pid, (0, now))
        signs = max(0, size - last) // MIB
        if signs or now - since >= SLOW_S:
            self._read[pid] = size, now
        return signs

    def _news(self, log: Path) -> int:
        """Number of complete lines with something new, in what was written since the last look."""
        try:
            with log.open("rb") as file:
                # In a pipe or a terminal nothing can be sought, so that nothing is taken from its reader.
                start = file.seek(max(self._logs[log], file.seek(0, os.SEEK_END) - MOST_BYTES))
                text = file.read(MOST_BYTES)
        except OSError:
            return 0
        end = max(text.rfind(b"\n"), text.rfind(b"\r")) + 1  # a bar is drawn anew after a carriage return
        self._logs[log] = start + end
        return sum(map(self._is_new, text[:end].replace(b"\r", b"\n").split(b"\n")))

    def _is_new(self, line: bytes) -> bool:
        kind = _WORD.sub(lambda word: b"0" if _DIGIT.search(word[0]) else word[0], line)
        done = max(map(float, _DONE.findall(line)), default=0.0)
        if not kind.strip() or done <= self._done.get(kind, -1.0):
            return False
        self._done[kind] = done
        return True


def _bytes_read(process: psutil.Process) -> int:
    try:
        counters = process.io_counters()
    except psutil.Error:
        return 0
    # Of a file that is mapped into memory, only what comes from the disk is counted, and only among the bytes.
    return max(counters.read_bytes, getattr(counters, "read_chars", 0))
