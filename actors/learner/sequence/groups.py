"""Ranks that share rows: who they are, and the two exchanges among them that a gradient passes.

Of a line of N tokens, rank r of S holds tokens r N / S up to (r + 1) N / S. Ranks next to one another form a group, so
that it is on one node where a node has enough of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn


@dataclass(frozen=True, slots=True)
class SequenceGroup:
    """The ranks that share each row, as one of them sees it."""

    size: int
    position: int
    """Of this rank among them."""
    handle: Any
    """Their process group."""

    def slice_of(self, line: Tensor) -> Tensor:
        """[1, N] to this rank's [1, N / S]; N is a multiple of S."""
        return line.chunk(self.size, dim=1)[self.position]

    def exchanged(self, parts: Tensor) -> Tensor:
        """[S, ..], part s for rank s of the group, to [S, ..], part s from rank s. Collective, and so is its gradient,
        which goes back the same way."""
        return _Exchanged.apply(parts, self.handle)

    def gathered(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """[K, p] on each rank, p its one of `counts`, to [K, P] on all of them, in the order of ranks. Collective.

        All ranks make the same loss of what they gather, and each has the gradient of its own columns: the gradients
        of a group's ranks add up to those of one loss, and not of S.
        """
        return _Gathered.apply(own, self, counts) if any(counts) else own


def sequence_group(size: int, limit: timedelta) -> SequenceGroup | None:
    """The group of this rank, of all ranks in groups of `size`; None where nothing is shared. Collective. limit: for
    which a rank waits for the others of its group."""
    if size == 1:
        return None
    rank, world = dist.get_rank(), dist.get_world_size()
    firsts = range(0, world, size)
    handles = [dist.new_group(list(range(first, first + size)), timeout=limit) for first in firsts]
    return SequenceGroup(size, rank % size, handles[rank // size])


def padded(line: Sequence[Tensor], size: int) -> list[Tensor]:
    """[1, N] each, the second of them positions, with as many tokens behind them as it takes to divide by `size`: a
    sample of its own, of which nothing is trained."""
    more = -line[0].shape[1] % size
    found = [nn.functional.pad(x, (0, more)) for x in line]
    if more:
        found[1][0, -more:] = torch.arange(more, device=found[1].device)
    return found


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, handle: Any) -> Tensor:
        ctx.handle = handle
        return _swapped(parts, handle)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _swapped(gradients[0], ctx.handle), None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, own: Tensor, group: SequenceGroup, counts: Sequence[int]) -> Tensor:
        before = sum(counts[: group.position])
        ctx.own = slice(before, before + counts[group.position])
        rows, most = len(own), max(counts)
        wide = nn.functional.pad(own, (0, most - own.shape[1]))
        found = wide.new_empty(group.size * rows, most)
        dist.all_gather_single(found, wide.contiguous(), group=group.handle)
        parts = found.split(rows)
        return torch.cat([part[:, :count] for part, count in zip(parts, counts, strict=True)], dim=1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][:, ctx.own], None, None


def _swapped(parts: Tensor, handle: Any) -> Tensor:
    parts = parts.contiguous()
    found = torch.empty_like(parts)
    dist.all_to_all_single(found, parts, group=handle)
    return found
