"""Packing: concatenates samples in rows of a fixed capacity, so that almost no token is padding."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from coa.types import Floats, Mask, Sample, Tokens


@dataclass(frozen=True)
class PackingConfig:
    """How samples are packed into rows of a micro-batch."""

    row_tokens: int = 8192
    """Tokens per row. Several short samples share a row, and a longer sample gets a row of its own. A smaller value
    needs less memory."""
    rows: int = 1
    """Rows per micro-batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed rows, [R, L] each: R rows of at most L tokens. Two samples [5, 6, 7] and [8, 9] in one row:

    token_ids = [[5, 6, 7, 8, 9]]
    positions = [[0, 1, 2, 0, 1]]
    segments  = [[1, 1, 1, 2, 2]]    0 is padding

    The per-token arrays (`loss_mask` and the rest) belong to the token at the same position, which is predicted from
    the previous position. The first token of a sample has no previous position, so it is never trained.
    """

    token_ids: Tokens
    positions: Tokens
    segments: Tokens
    loss_mask: Mask
    imitate: Floats
    reinforce: Floats
    rollout_logprobs: Floats
    versions: Tokens


def fill_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Indices of samples per row, by first-fit decreasing."""
    rows: list[list[int]] = []
    free: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        row = next((r for r, left in enumerate(free) if left >= lengths[index]), None)
        if row is None:
            rows.append([])
            free.append(max(capacity, lengths[index]))
            row = len(rows) - 1
        rows[row].append(index)
        free[row] -= lengths[index]
    return rows


def _grid(rows: list[list[NDArray]], width: int, dtype: type) -> NDArray:
    grid = np.zeros((len(rows), width), dtype)
    for r, pieces in enumerate(rows):
        flat = np.concatenate(pieces)
        grid[r, : len(flat)] = flat
    return grid


def micro_batch(rows: Sequence[Sequence[Sample]]) -> MicroBatch:
    """Concatenates each row's samples; rows are padded to the longest row."""
    width = max(sum(map(len, row)) for row in rows)

    def grid(field: str, dtype: type) -> NDArray:
        return _grid([[getattr(sample, field) for sample in row] for row in rows], width, dtype)

    loss_mask = grid("loss_mask", np.bool_)
    for r, row in enumerate(rows):
        loss_mask[r, np.cumsum([0, *map(len, row)])[:-1]] = False
    return MicroBatch(
        token_ids=grid("token_ids", np.int32),
        positions=_grid([[np.arange(len(s), dtype=np.int32) for s in row] for row in rows], width, np.int32),
        segments=_grid([[np.full(len(s), i + 1) for i, s in enumerate(row)] for row in rows], width, np.int32),
        loss_mask=loss_mask,
        imitate=grid("imitate", np.float32),
        reinforce=grid("reinforce", np.float32),
        rollout_logprobs=grid("rollout_logprobs", np.float32),
        versions=grid("versions", np.int32),
    )


def pack(samples: Sequence[Sample], config: PackingConfig) -> list[MicroBatch]:
    """All samples in micro-batches of `config.rows` rows; rows are sorted by length to reduce padding."""
    filled = fill_rows([len(sample) for sample in samples], config.row_tokens)
    filled.sort(key=lambda row: -sum(len(samples[i]) for i in row))
    rows = [[samples[i] for i in row] for row in filled]
    return [micro_batch(rows[at : at + config.rows]) for at in range(0, len(rows), config.rows)]
