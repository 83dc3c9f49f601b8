"""The files of the distilled data set.

    data/train-00000.parquet    the kept runs of one wave; its metadata holds counts of all its runs by outcome
    data/train-00001.parquet
    data/README.md              the card, which tells `datasets.load_dataset("data")` how to read the folder

Shards are written atomically. Nothing else lies in the folder, so the folder itself is the data set.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from coa.distill.dataset.rows import NO_COLUMNS, SCHEMA, Demonstration, OwnColumns, from_row, to_row
from coa.errors import UserError
from coa.json_object import Json, JsonView
from coa.storage.files import replacing
from coa.types import Task

CARD = "README.md"
ROWS_AT_ONCE = 512
REPORT, TOKENS = b"report", b"tokens"
"""Keys of a shard's metadata."""


def shard_path(folder: Path, index: int) -> Path:
    return folder / f"train-{index:05}.parquet"


def shard_paths(folder: Path) -> list[Path]:
    return sorted(folder.glob("train-*.parquet"))


def is_data_set(path: Path) -> bool:
    """Whether a folder is a data set of ours: its first shard has our columns. Raises UserError for a shard that is no
    Parquet file."""
    shards = shard_paths(path) if path.is_dir() else []
    return bool(shards) and not missing_columns(shards[0])


def write_shard(
    folder: Path, index: int, rows: Iterable[Demonstration], report: JsonView, own: OwnColumns = NO_COLUMNS
) -> None:
    """Writes a shard. report: outcomes of all its runs, including those that were not kept, as plain JSON."""
    table = pa.Table.from_pylist([to_row(row, own) for row in rows], schema=own.schema())
    outdate_card(folder)
    with replacing(shard_path(folder, index)) as part:
        pq.write_table(table.replace_schema_metadata({REPORT: json.dumps(dict(report))}), part, compression="zstd")


def outdate_card(folder: Path) -> None:
    """Deletes the card. `datasets` relies on the columns and row counts in it, so it must be deleted before a shard
    changes."""
    (folder / CARD).unlink(missing_ok=True)


def read_reports(folder: Path) -> Iterator[Json]:
    """The report of each shard, in order."""
    for path in shard_paths(folder):
        yield json.loads(metadata_of(path)[REPORT])


def metadata_of(path: Path) -> dict[bytes, bytes]:
    """The metadata of a shard's file; raises UserError if the file is no shard."""
    if missing := missing_columns(path):
        raise UserError(f"{path}: not a shard of distilled data: there is no column {missing}")
    return dict(_schema(path).metadata or {})


def missing_columns(path: Path) -> str:
    """The first column that a Parquet file lacks to be a shard; "" if it lacks none. Raises UserError for another
    file."""
    return min(set(SCHEMA.names) - set(_schema(path).names), default="")


def _schema(path: Path) -> pa.Schema:
    try:
        return pq.read_schema(path)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"{path}: not a Parquet file: {str(error).splitlines()[0]}") from error


def read_rows(folder: Path) -> Iterator[Demonstration]:
    """Every row, in the order of the shards; memory does not grow with their number."""
    for path in shard_paths(folder):
        yield from read_rows_of(path)


def read_rows_of(path: Path) -> Iterator[Demonstration]:
    """The rows of one shard."""
    metadata_of(path)
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=ROWS_AT_ONCE, columns=SCHEMA.names):
            yield from map(from_row, batch.to_pylist())


def read_demonstrations(folder: Path) -> Iterator[tuple[Task, str, int]]:
    """(task, chain as tag text, copies) of every row."""
    for row in read_rows(folder):
        yield row.task, row.text, row.copies
