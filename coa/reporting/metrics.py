"""A run's metrics: one record per step, written to `metrics.jsonl` first and then to the other sinks."""

import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from coa.json_object import Json
from coa.reporting.boundary import SinkBoundary
from coa.storage.files import sync
from coa.storage.jsonl import append_line, read_lines, write_lines
from coa.unicode import whole

Record = Json
"""{"stage": "rl", "step": 7, "time": 1763683200.0 (seconds since 1970), ... what the step measured}"""


class Sink(Protocol):
    """Receives records as they are made; it never blocks a stage. `str(sink)` is its name for the user."""

    def emit(self, record: Record) -> None: ...

    def close(self) -> None: ...


class MetricsLog:
    """Appends records to `metrics.jsonl`; each is in the file when `write` returns, and has gone to the sinks."""

    def __init__(
        self,
        path: Path,
        resume: Mapping[str, int] | None = None,
        sinks: Sequence[Sink] = (),
        boundary: SinkBoundary | None = None,
    ) -> None:
        """`resume`: for a stage, the step at which it continues; its records from that step on are dropped. The sinks
        stay open when the log is closed; one that fails is left out, as `boundary` keeps it."""
        self._path, self._sinks, self._boundary = path, sinks, boundary or SinkBoundary()
        write_lines(path, before(read_metrics(path), resume or {}))

    def write(self, stage: str, step: int, **values: object) -> None:
        """Values are numbers (NumPy's and one-element tensors too), text, or lists of them."""
        plain = {name: _plain(value) for name, value in values.items()}
        record = {"stage": stage, "step": step, "time": round(time.time(), 3), **plain}
        append_line(self._path, record)
        for sink in self._sinks:
            self._boundary.attempt(str(sink), partial(sink.emit, record))

    def close(self) -> None:
        sync(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def before(records: list[Record], resume: Mapping[str, int]) -> list[Record]:
    """The records that a resumed run keeps: those of stages not named, and steps before the named ones."""
    return [record for record in records if record["step"] < resume.get(record["stage"], record["step"] + 1)]


def read_metrics(path: Path) -> list[Record]:
    """Every complete record; a last line that was cut off by a crash is left out."""
    return read_lines(path)


def measured(record: Record) -> Iterator[tuple[str, float]]:
    """The numbers of a record by name, without its step and time."""
    for name, value in record.items():
        if name not in ("step", "time") and isinstance(value, int | float):
            yield whole(name), value


def _plain(value: Any) -> object:
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if not hasattr(value, "shape"):
        return value
    return value.item() if value.shape == () else value.tolist()
