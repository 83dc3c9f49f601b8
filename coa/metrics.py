"""A run's metrics: one JSON line a step, for pandas and for the report."""

import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from coa.files import write_atomically

Record = dict[str, Any]
"""{"stage": "rl", "step": 7, "time": 1763683200.0 (seconds since 1970), ... what the step measured}"""


class MetricsLog:
    """Appends records to `metrics.jsonl`; each is in the file when `write` returns."""

    def __init__(self, path: Path, resume: Mapping[str, int] | None = None) -> None:
        """`resume`: for a stage, the step at which it goes on; its records from there on are dropped."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            kept = before(read_metrics(path), resume or {})
            write_atomically(path, "".join(f"{json.dumps(record)}\n" for record in kept))
        self._file = path.open("a", encoding="utf-8", buffering=1)

    def write(self, stage: str, step: int, **values: object) -> None:
        """Values are numbers (NumPy's and one-element tensors too), text, or lists of them."""
        record = {"stage": stage, "step": step, "time": round(time.time(), 3), **values}
        self._file.write(f"{json.dumps(record, default=_plain)}\n")

    def close(self) -> None:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

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
    lines = path.read_text(encoding="utf-8").split("\n")
    return [json.loads(line) for line in lines[:-1] if line]


def _plain(value: Any) -> Any:
    return value.item() if value.shape == () else value.tolist()
