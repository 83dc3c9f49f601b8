"""Groups of ranks that share rows, and two differentiable exchanges among them.

Of a line of N tokens, rank r of S holds tokens r N / S up to (r + 1) N / S. Adjacent ranks form a group, so that a
group is on one node if a node has enough ranks.
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
    """The group of ranks that share each row, from the view of one rank."""

    size: int
    position: int
    """Index of this rank in the group."""
    handle: object
    """The group's process group."""

    def slice_of(self, line: Tensor) -> Tensor:
        """This rank's slice [1, N / S] of a line [1, N]; N is a multiple of S."""
        return line.chunk(self.size, dim=1)[self.position]

    def exchanged(self, parts: Tensor) -> Tensor:
        """All-to-all: takes [S, ..] with part s for rank s of the group, and returns [S, ..] with part s from rank s.
        Collective; its gradient is the same collective."""
        return _Exchanged.apply(parts, self.handle)

    def gathered(self, own: Tensor, counts: Sequence[int]) -> Tensor:
        """Gathers [K, p] of each rank, with p from `counts`, to [K, P] on all ranks, in the order of ranks. Collective.

        All ranks compute the same loss from the gathered tensor, and each gets only the gradient of its own columns, so
        the gradients of a group's ranks add up to the gradient of one loss, not of S losses.
        """
        return _Gathered.apply(own, self, counts) if any(counts) else own


def sequence_group(size: int, limit: timedelta) -> SequenceGroup | None:
    """Divides all ranks into groups of `size` and returns this rank's group; None if `size` is 1. Collective. limit:
    timeout of the group's collectives."""
    if size == 1:
        return None
    rank, world = dist.get_rank(), dist.get_world_size()
    firsts = range(0, world, size)
    handles = [dist.new_group(list(range(first, first + size)), timeout=limit) for first in firsts]
    return SequenceGroup(size, rank % size, handles[rank // size])


def padded(line: Sequence[Tensor], size: int) -> list[Tensor]:
    """Pads tensors [1, N], the second of them positions, to a multiple of `size` tokens. The padding is a separate
    sample without trained tokens."""
    more = -line[0].shape[1] % size
    found = [nn.functional.pad(x, (0, more)) for x in line]
    if more:
        found[1][0, -more:] = torch.arange(more, device=found[1].device)
    return found


class _Exchanged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, parts: Tensor, handle: object) -> Tensor:
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


def _swapped(parts: Tensor, handle: object) -> Tensor:
    parts = parts.contiguous()
    found = torch.empty_like(parts)
    dist.all_to_all_single(found, parts, group=handle)
    return found
