"""The recorded batches of a run: the samples that each rank trained in a step, for `coa verify --replay`.

    batches/rl-00012.arrow    step 12: one row per sample, with its rank and its arrays
    batches/digests.jsonl     {"step": 12, "digest": "9f2c..."}, of the whole file; the last line of a step counts

A step that is repeated after a rollback to a checkpoint replaces the earlier record.

The format is Arrow's own (Feather 2, `pandas.read_feather`). Parquet takes three times the CPU time for the same size,
since it encodes the level of every element of a list.
"""

import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash
from pyarrow import feather

from coa.errors import DamagedFile
from coa.storage.files import replacing
from coa.storage.jsonl import append_line, read_lines
from coa.types import Sample

DealtSamples = Sequence[Sequence[Sample]]
"""The samples of each rank."""
ARRAYS = ("token_ids", "loss_mask", "imitate", "reinforce", "rollout_logprobs", "versions")
RANKS = b"ranks"
"""Metadata key of the number of ranks, since a rank may have no samples."""


class BatchStore:
    """Stores batches in a folder of its own; only one process may write. Digests detect damage, not attacks."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writing = threading.Lock()
        """Serializes writes: a step that a restart interrupted is written before the step that replaces it."""
        self._read: tuple[tuple[int, int] | None, Mapping[int, str]] = (None, {})
        """The file's modification time and size when the digests were read, and the digests."""

    def write(self, step: int, shares: DealtSamples) -> None:
        """Writes a step; returns once the file is on the disk. Raises DiskFull if there is no room."""
        with self._writing:
            path = self.path(step)
            with replacing(path) as part:
                feather.write_feather(to_table(shares), part, compression="zstd")
                found = xxhash.xxh3_128_hexdigest(part.read_bytes())
            append_line(self._folder / "digests.jsonl", {"step": step, "digest": found})

    def read(self, step: int) -> list[list[Sample]]:
        """Reads a step; raises DamagedFile if the file is missing or differs from what was written."""
        path = self.path(step)
        if not path.exists():
            raise DamagedFile(f"{path} is missing")
        data = path.read_bytes()
        found, recorded = xxhash.xxh3_128_hexdigest(data), self._digests().get(step)
        if found != recorded:
            raise DamagedFile(f"{path} was changed since it was recorded: its digest is {found}, not {recorded}")
        return from_table(feather.read_table(pa.BufferReader(data)))

    def steps(self) -> list[int]:
        """The recorded steps, in ascending order."""
        found = (re.fullmatch(r"rl-(\d+)\.arrow", path.name) for path in self._folder.glob("rl-*.arrow"))
        return sorted(int(match[1]) for match in found if match)

    def path(self, step: int) -> Path:
        return self._folder / f"rl-{step:05}.arrow"

    def _digests(self) -> Mapping[int, str]:
        path = self._folder / "digests.jsonl"
        status = path.stat() if path.exists() else None
        version = (status.st_mtime_ns, status.st_size) if status else None
        if version is None or version != self._read[0]:
            self._read = version, {line["step"]: line["digest"] for line in read_lines(path)}
        return self._read[1]


def to_table(shares: DealtSamples) -> pa.Table:
    samples = [sample for share in shares for sample in share]
    offsets = pa.array(np.cumsum([0, *map(len, samples)]), pa.int32())
    columns: dict[str, pa.Array] = {
        "rank": pa.array([rank for rank, share in enumerate(shares) for _ in share], pa.int32()),
        "group": pa.array([sample.group for sample in samples], pa.int64()),
    }
    for name in ARRAYS:
        arrays = [getattr(sample, name) for sample in samples]
        flat = np.concatenate(arrays) if arrays else np.zeros(0, np.int32)
        columns[name] = pa.ListArray.from_arrays(offsets, pa.array(flat))
    return pa.table(columns).replace_schema_metadata({RANKS: str(len(shares))})


def from_table(table: pa.Table) -> list[list[Sample]]:
    """The inverse of `to_table`, bit for bit."""
    shares: list[list[Sample]] = [[] for _ in range(int((table.schema.metadata or {})[RANKS]))]
    table = table.combine_chunks()
    arrays = {name: split(table[name]) for name in ARRAYS}
    ranks, groups = table["rank"].to_pylist(), table["group"].to_pylist()
    for row, (rank, group) in enumerate(zip(ranks, groups, strict=True)):
        shares[rank].append(Sample(group=group, **{name: parts[row] for name, parts in arrays.items()}))
    return shares


def split(column: pa.ChunkedArray) -> list[np.ndarray]:
    """The rows of a column of lists, as arrays."""
    if not column.num_chunks:
        return []
    lists = column.chunk(0)
    flat = lists.values.to_numpy(zero_copy_only=False)
    return np.split(flat, lists.offsets.to_numpy()[1:-1]) if len(lists) else []
