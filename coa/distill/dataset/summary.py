"""Counts of a data set's contents, made from its columns, for its card and for the report of a stage."""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from coa.distill.dataset.shards import metadata_of, shard_paths
from coa.distill.dataset.tokens import COLUMNS

COUNTED = ("profile", "family", "team", "source", "models")
_SUMMED = ("copies", "reflected", "corrected", "requests", "prompt_tokens", "completion_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatistics:
    """Counts of tokens over the rows; each row counts once, whatever its copies."""

    total: int
    learnt: int
    """Tokens of the policy, on which the loss is computed."""
    mean: float
    median: float
    p95: float
    longest: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    rows: int
    copies: int
    """Number of rows with their copies."""
    counts: dict[str, dict[str, int]]
    """Rows by value of each of COUNTED, the most frequent first; `models` is JSON."""
    reflected: int
    corrected: int
    interactions: float
    """Mean."""
    requests: int
    """Requests to language models for the kept rows; the token counts below cover the same rows."""
    prompt_tokens: int
    completion_tokens: int
    unnamed: int
    """Number of rows without the name of a model although language models were used."""
    tokens: TokenStatistics | None
    """Statistics of tokens; None until the rows have tokens."""
    bytes: int
    """Uncompressed size."""
    columns: dict[str, str]
    """Name -> Arrow type, as text."""


def summarise(folder: Path) -> Summary:
    """Summarises the folder, reading only the columns needed, shard by shard; raises UserError for a file that is no
    shard."""
    counts = {name: Counter[str]() for name in COUNTED}
    sums = Counter[str]()
    lengths: list[np.ndarray] = []
    interactions = rows = learnt = size = unnamed = 0
    columns: dict[str, str] = {}
    for path in shard_paths(folder):
        metadata_of(path)
        with pq.ParquetFile(path) as file:
            columns = {field.name: str(field.type) for field in file.schema_arrow}
            size += sum(file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups))
        table = pq.read_table(path, columns=[*COUNTED, *_SUMMED, "interactions"])
        rows += len(table)
        for name in COUNTED:
            counts[name].update({one["values"]: one["counts"] for one in table[name].value_counts().to_pylist()})
        for name in _SUMMED:
            sums[name] += _sum(table[name])
        interactions += _sum(table["interactions"])
        asked = zip(table["models"].to_pylist(), table["requests"].to_pylist(), strict=True)
        unnamed += sum(models in ("", "{}") and requests > 0 for models, requests in asked)
        if set(COLUMNS.names) <= set(columns):
            with pq.ParquetFile(path) as file:
                for batch in file.iter_batches(columns=["tokens", "policy_mask"]):
                    lengths.append(batch["tokens"].to_numpy())
                    learnt += _sum(batch["policy_mask"].flatten())
    return Summary(
        rows=rows,
        counts={name: dict(counter.most_common()) for name, counter in counts.items()},
        interactions=interactions / rows if rows else 0.0,
        unnamed=unnamed,
        tokens=_statistics(np.concatenate(lengths), learnt) if lengths else None,
        bytes=size,
        columns=columns,
        **{name: sums[name] for name in _SUMMED},
    )


def _sum(column: object) -> int:
    return pc.sum(column).as_py() or 0  # pyright: ignore[reportAttributeAccessIssue]


def _statistics(lengths: np.ndarray, learnt: int) -> TokenStatistics:
    return TokenStatistics(
        total=int(lengths.sum()),
        learnt=learnt,
        mean=float(lengths.mean()),
        median=float(np.median(lengths)),
        p95=float(np.percentile(lengths, 95)),
        longest=int(lengths.max()),
    )
