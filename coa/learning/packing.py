"""Packing: puts samples into rows of a fixed capacity as prefix trees, so that almost no token is padding and none is
computed twice.

Samples that begin alike, such as the rollouts of a group, share the tokens up to where they part (Prefix Grouper, arXiv
2506.05433, for trees of any depth). A token's hidden states follow from the tokens before it alone, so log-probs and
gradients are those of samples that are computed one by one. Losses stay per sample: a shared token counts once for each
sample that trains it, with that sample's advantage.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from coa.bounds import AtLeast1
from coa.types import ENVIRONMENT, Floats, Sample, Tokens

Scalar = TypeVar("Scalar", bound=np.generic)

JOINING_SHARE = 1 / 8
"""Least share of its tokens for which a sample joins the tree of another: with fewer, rows of samples that are free to
be combined are fuller."""
SEEN = 8
"""Tokens that the branches of a row see, each branch for itself, in multiples of the row's: attention copies their keys
and values."""


@dataclass(frozen=True)
class PackingConfig:
    """How samples are packed into rows of a micro-batch."""

    row_tokens: AtLeast1 = 8192
    """Tokens per row. Several short samples share a row, and a longer sample gets a row of its own. A smaller value
    needs less memory."""
    rows: AtLeast1 = 1
    """Rows per micro-batch."""
    share_prefixes: bool = True
    """Whether tokens with which samples begin alike are computed once. Gradients are the same. Samples are computed
    whole with flash_attention_2, flash_attention_3 and flex_attention, and one at a time in models that compute
    otherwise in packed rows."""


ONE_SAMPLE = PackingConfig(row_tokens=1, rows=1, share_prefixes=False)
"""A micro-batch holds one sample: one that is longer than a row gets a row of its own."""


@dataclass(frozen=True, slots=True)
class Branch:
    """Tokens of a sample that no sample before it in the row has."""

    prefix: NDArray[np.int64]
    """The tokens before them, as places in the line; empty for a sample that shares nothing."""
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """Packed rows, [R, L] each: R rows of at most L tokens. Three samples [5, 6, 7], [5, 6, 8, 9] and [4] in one row:

    token_ids = [[5, 6, 7, 8, 9, 4]]
    positions = [[0, 1, 2, 2, 3, 0]]
    ends      = [[5, 5, 3, 5, 5, 6]]    the tokens from a token up to its end are those that see it; 0 is padding
    branches  = [5 6 7], [8 9] behind the places 0 and 1, [4]

    The line is the rows one after the other, without padding. The remaining arrays, [P] each, are the trained tokens of
    all samples, sample by sample. The first token of a sample has none that predicts it, so it is never trained.
    """

    token_ids: Tokens
    positions: Tokens
    ends: Tokens
    branches: tuple[Branch, ...]
    trained: NDArray[np.int64]
    """Place in the line of each trained token."""
    predictors: NDArray[np.int64]
    """Place of the token before it in its sample."""
    segments: NDArray[np.int64]
    """Number of its sample in the micro-batch."""
    imitate: Floats
    reinforce: Floats
    rollout_logprobs: Floats
    versions: Tokens
    members: tuple[int, ...]
    """The samples, as indices of what was packed."""
    whole: int
    """Number of tokens of the samples."""
    untrained: int
    """Number of them that a policy sampled and that are not trained."""

    @property
    def tokens(self) -> int:
        """Number of tokens that are computed."""
        return sum(branch.tokens for branch in self.branches)


def common_prefix(one: Tokens, other: Tokens) -> int:
    """Number of tokens with which both begin.

    common_prefix([5, 6, 7], [5, 6, 8, 9]) == 2
    """
    shorter = min(len(one), len(other))
    differs = np.flatnonzero(one[:shorter] != other[:shorter])
    return int(differs[0]) if len(differs) else shorter


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


@dataclass(frozen=True, slots=True)
class Tree:
    """Samples that are packed together."""

    members: tuple[int, ...]
    """Indices of the samples; each shares most with the one before it."""
    tokens: int
    """Number of tokens that are computed."""
    seen: int
    """Number of tokens that their branches see, each branch for itself."""
    attention: int
    """Cost of attention: tokens of each branch times the tokens that it sees."""

    @classmethod
    def alone(cls, index: int, length: int) -> "Tree":
        return cls((index,), length, length, length**2)

    def joined(self, index: int, length: int, more: int) -> "Tree":
        """With a sample of which `more` tokens are new."""
        seen = length if more else 0
        return Tree((*self.members, index), self.tokens + more, self.seen + seen, self.attention + more * seen)


class Alike:
    """Samples in an order in which those that begin alike are neighbours."""

    def __init__(self, samples: Sequence[Tokens]) -> None:
        # Bytes of big-endian numbers sort as the sequences of numbers do.
        order = sorted(range(len(samples)), key=lambda index: samples[index].astype(">u4").tobytes())
        before = [np.zeros(0, np.int32), *(samples[index] for index in order)]
        self._samples = [
            (index, len(samples[index]), common_prefix(last, samples[index]))
            for last, index in zip(before, order, strict=False)
        ]
        """Index and length of each sample, and how many tokens it shares with the one before it."""

    def trees(self, capacity: int) -> list[Tree]:
        """All samples as trees of at most `capacity` tokens, whose branches see at most SEEN times as many; a longer
        sample is joined only by those that add no token to it."""
        found: list[Tree] = []
        for index, length, shared in self._samples:
            if found and shared >= JOINING_SHARE * length:
                joined = found[-1].joined(index, length, length - shared)
                if joined.tokens <= max(capacity, found[-1].tokens) and joined.seen <= max(
                    SEEN * capacity, found[-1].seen
                ):
                    found[-1] = joined
                    continue
            found.append(Tree.alone(index, length))
        return found


@dataclass(slots=True)
class Row:
    """A row while it is packed."""

    first: int
    """Place of its first token in the line."""
    share: bool
    token_ids: list[Tokens]
    positions: list[NDArray[np.int64]]
    ends: NDArray[np.int64]
    path: NDArray[np.int64]
    """Places in the row of the last sample's tokens."""
    last: Tokens

    @classmethod
    def empty(cls, first: int, *, share: bool) -> "Row":
        none = np.zeros(0, np.int64)
        return cls(first, share, [], [], none, none, np.zeros(0, np.int32))

    def add(self, token_ids: Tokens) -> Branch:
        """Appends the tokens that the sample does not share with the one before it."""
        shared = common_prefix(self.last, token_ids) if self.share else 0
        size, more = len(self.ends), len(token_ids) - shared
        branch = Branch(self.first + self.path[:shared], more)
        self.path = np.concatenate([self.path[:shared], np.arange(size, size + more)])
        self.token_ids.append(token_ids[shared:])
        self.positions.append(np.arange(shared, len(token_ids)))
        self.ends = np.concatenate([self.ends, np.zeros(more, np.int64)])
        self.ends[self.path] = size + more
        self.last = token_ids
        return branch


def micro_batch(rows: Sequence[Sequence[Sample]], *, share: bool = True, members: Iterable[int] = ()) -> MicroBatch:
    """Packs each row's samples in their order, each sharing with the one before it; rows are padded to the longest row.
    members: the samples' indices; by default they are counted."""
    packed: list[Row] = []
    branches: list[Branch] = []
    paths: list[NDArray[np.int64]] = []
    first = 0
    for row in rows:
        packed.append(Row.empty(first, share=share))
        for sample in row:
            branches.append(packed[-1].add(sample.token_ids))
            paths.append(first + packed[-1].path)
        first += len(packed[-1].ends)
    samples = [sample for row in rows for sample in row]
    trained = [np.flatnonzero(sample.loss_mask[1:]) + 1 for sample in samples]

    def flat(pieces: Iterable[NDArray[np.generic]], dtype: type[Scalar]) -> NDArray[Scalar]:
        return np.concatenate([np.zeros(0, dtype), *pieces]).astype(dtype, copy=False)

    def of(field: str, dtype: type[Scalar]) -> NDArray[Scalar]:
        return flat((getattr(one, field)[where] for one, where in zip(samples, trained, strict=True)), dtype)

    sampled = sum(int((sample.versions != ENVIRONMENT).sum()) for sample in samples)
    versions = of("versions", np.int32)
    return MicroBatch(
        token_ids=_grid([np.concatenate(row.token_ids) for row in packed]),
        positions=_grid([np.concatenate(row.positions) for row in packed]),
        ends=_grid([row.ends for row in packed]),
        branches=tuple(branch for branch in branches if branch.tokens),
        trained=flat((path[where] for path, where in zip(paths, trained, strict=True)), np.int64),
        predictors=flat((path[where - 1] for path, where in zip(paths, trained, strict=True)), np.int64),
        segments=np.repeat(np.arange(len(samples)), [len(where) for where in trained]),
        imitate=of("imitate", np.float32),
        reinforce=of("reinforce", np.float32),
        rollout_logprobs=of("rollout_logprobs", np.float32),
        versions=versions,
        members=tuple(members) or tuple(range(len(samples))),
        whole=sum(map(len, samples)),
        untrained=sampled - int((versions != ENVIRONMENT).sum()),
    )


def _grid(rows: Sequence[NDArray[np.generic]]) -> Tokens:
    grid = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for r, row in enumerate(rows):
        grid[r, : len(row)] = row
    return grid


def pack(samples: Sequence[Sample], config: PackingConfig) -> list[MicroBatch]:
    """All samples in micro-batches of `config.rows` rows; rows are sorted by length to reduce padding."""
    if config.share_prefixes:
        found = Alike([sample.token_ids for sample in samples]).trees(config.row_tokens)
    else:
        found = [Tree.alone(index, len(sample)) for index, sample in enumerate(samples)]
    filled = fill_rows([tree.tokens for tree in found], config.row_tokens)
    filled.sort(key=lambda row: -sum(found[i].tokens for i in row))
    rows = [[index for i in row for index in found[i].members] for row in filled]
    return [
        micro_batch(
            [[samples[i] for i in row] for row in part],
            share=config.share_prefixes,
            members=[i for row in part for i in row],
        )
        for part in (rows[at : at + config.rows] for at in range(0, len(rows), config.rows))
    ]
