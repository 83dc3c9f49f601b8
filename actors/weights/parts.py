"""The part of the flattened model that one rank has, given out piece by piece.

    ZeRO-3      each rank gives its flat partition of every parameter, independently of other ranks; buffers, which
                every rank has, are given by the first
    ZeRO 1, 2   every rank has all parameters: each writer gives an equal range of the flattened model
    adapters    W + scale B A, for the rows that the rank's own range of W touches: only A and B are gathered

No rank ever holds more than its own part of the model plus two buckets.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from math import prod
from typing import TypeGuard

import torch
import torch.distributed as dist
from torch import Tensor

from actors.learner.lora import Source
from actors.weights.manifest import ITEM_BYTES, Layout, TensorSpan, lay_out
from actors.weights.segment import Piece

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.bool: "BOOL",
}
"""safetensors names of the number types that weights are published in."""
MERGED_BYTES = 32
"""Bytes per element while an adapter is merged: float32 weight, change and sum, the result, and what its rounding
takes."""
DROPPED_BITS = 16
"""Bits of a float32 that a bfloat16 lacks."""


class Partition(Tensor):
    """The part of a parameter that one rank has under ZeRO-3."""

    ds_numel: int


class Sharded(Tensor):
    """A parameter under ZeRO-3, by the attributes that DeepSpeed gives it."""

    ds_numel: int
    ds_tensor: Partition
    ds_zero_partition_rank: int


class ModelParts:
    """One rank's part of the model. `pieces` is collective only if adapters are sharded."""

    def __init__(self, sources: Sequence[Source], *, sharded: bool, bucket_bytes: int) -> None:
        """`sharded`: whether the parameters are partitioned among the ranks, as ZeRO-3 does."""
        self._sources = {source.name: source for source in sources}
        self._sharded = sharded
        tensors = [(s.name, DTYPES[s.parameters[0].dtype], shape_of(s.parameters[0])) for s in sources]
        self._whole = lay_out(tensors, bucket_bytes).tensors
        self.layout = Layout(tuple(one for span in self._whole for one in self._spans_of_pieces(span)), bucket_bytes)
        """Of the tensors that are written; one of the model may be written as several."""

    def ranges(self, writer: int | None, writers: int) -> list[tuple[int, int]]:
        """Byte ranges that this rank writes as number `writer` of `writers`, in order; `writer` is None for a rank that
        writes nothing. Under ZeRO-3 every rank writes its partition."""
        if self._sharded:
            own = ((span.start, *self._partition(span)) for span in self._whole)
            return [(start + a, start + b) for start, a, b in own if b > a]
        return [] if writer is None else [self.layout.shares(writers)[writer]]

    @property
    def device(self) -> torch.device:
        """Device that holds this rank's part."""
        weight = next(iter(self._sources.values())).parameters[0]
        return (weight.ds_tensor if is_sharded(weight) else weight).device

    def pieces(self, writer: int | None = 0, writers: int = 1) -> Iterator[Piece]:
        """The bytes of `ranges`, at most a bucket at a time. A piece is valid until the next is requested. Nothing is
        copied if the model is in host memory."""
        for at, piece in self.tensors(writer, writers):
            yield at, piece.cpu().numpy()

    def tensors(self, writer: int | None = 0, writers: int = 1) -> Iterator[tuple[int, Tensor]]:
        """The same as `pieces`, as flat byte tensors on `device`."""
        share = None if self._sharded or writer is None else self.layout.shares(writers)[writer]
        for group in self._in_groups():
            with self._gathered(group):
                for span in group:
                    a, b = self._partition(span) if self._sharded else overlap(span, share)
                    if b > a:
                        yield from self._read(span, a, b)

    def _spans_of_pieces(self, span: TensorSpan) -> Iterator[TensorSpan]:
        pieces = self._sources[span.name].pieces or ((span.name, span.shape),)
        start, width = span.start, ITEM_BYTES[span.dtype]
        for name, shape in pieces:
            yield TensorSpan(name, span.dtype, shape, start, stop := start + width * prod(shape))
            start = stop
        assert start == span.stop, f"{span.name} is not its pieces"

    def _in_groups(self) -> Iterator[list[TensorSpan]]:
        """Groups of tensors whose adapters fit into a bucket together, the same on every rank."""
        group: list[TensorSpan] = []
        size = 0
        for span in self._whole:
            more = sum(_elements(p) * p.element_size() for p in self._sources[span.name].parameters[1:])
            if group and size + more > self.layout.bucket_bytes:
                yield group
                group, size = [], 0
            group.append(span)
            size += more
        if group:
            yield group

    def _gathered(self, group: list[TensorSpan]) -> AbstractContextManager[object]:
        adapters = [p for span in group for p in self._sources[span.name].parameters[1:]]
        if not self._sharded or not adapters:
            return nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters(adapters)

    def _partition(self, span: TensorSpan) -> tuple[int, int]:
        """Byte range of this tensor in the rank's partition; the last partitions may be partly or entirely padding."""
        weight = self._sources[span.name].parameters[0]
        if not is_sharded(weight):
            return (0, span.stop - span.start) if dist.get_rank() == 0 else (0, 0)
        width, size = weight.element_size(), weight.ds_tensor.ds_numel
        start = min(weight.ds_zero_partition_rank * size, weight.ds_numel)
        return start * width, min(start + size, weight.ds_numel) * width

    def _read(self, span: TensorSpan, a: int, b: int) -> Iterator[tuple[int, Tensor]]:
        """Bytes `a` to `b` of a tensor."""
        source = self._sources[span.name]
        weight = source.parameters[0]
        width = weight.element_size()
        if is_sharded(weight):
            flat, first = weight.ds_tensor.detach(), a // width
        else:
            flat, first = weight.detach().reshape(-1), 0
        adapter = [p.detach() for p in source.parameters[1:]]
        limit = max(1, self.layout.bucket_bytes // (MERGED_BYTES if adapter else width))
        for at in range(a // width, b // width, limit):
            stop = min(at + limit, b // width)
            piece = flat[at - first : stop - first]
            if adapter:
                piece = merge(piece, source, *adapter, at, seed=span.start)
            yield span.start + at * width, piece.contiguous().view(torch.uint8)


def merge(piece: Tensor, source: Source, a: Tensor, b: Tensor, at: int, seed: int = 0) -> Tensor:
    """Elements of W + scale B A from index `at` of the flattened weight on; `piece` holds W's elements there. seed: of
    the rounding of a bfloat16 matrix."""
    columns = shape_of(source.parameters[0])[-1]
    first, last = at // columns, -(-(at + len(piece)) // columns)
    # Offloaded weights are in the host's memory, their adapters on the device.
    change = source.change(a, b, first, last).reshape(-1).to(piece.device)
    skip = at - first * columns
    merged = piece.float() + source.scale * change[skip : skip + len(piece)]
    return rounded(merged, seed + at) if piece.dtype is torch.bfloat16 else merged.to(piece.dtype)


def rounded(values: Tensor, number: int) -> Tensor:
    """Float32 values as bfloat16, up or down with the probability that keeps their mean (stochastic rounding).

    Rounding to the nearest would leave out changes that are smaller than half of the distance between two bfloat16
    numbers, which those of the first steps are in nearly all elements. Whether an element is rounded up follows from
    its value and its number alone, `number` for the first: a matrix is the same however it is cut into pieces, and one
    that did not change is as it was.
    """
    numbers = torch.arange(number, number + len(values), device=values.device)  # splitmix64, whose products wrap
    mixed = numbers * -7046029254386353131
    for shift, factor in ((30, -4658895280553007687), (27, -7723592293110705685)):
        mixed = (mixed ^ ((mixed >> shift) & ((1 << (64 - shift)) - 1))) * factor
    threshold = (mixed >> 40) & ((1 << DROPPED_BITS) - 1)
    bits = (values.view(torch.int32) + threshold.int()) & -(1 << DROPPED_BITS)
    return bits.view(torch.float32).to(torch.bfloat16)


def overlap(span: TensorSpan, share: tuple[int, int] | None) -> tuple[int, int]:
    """Byte range of a tensor within `share`; empty if `share` is None."""
    if share is None:
        return 0, 0
    return max(span.start, share[0]) - span.start, max(span.start, min(span.stop, share[1])) - span.start


def is_sharded(tensor: Tensor) -> TypeGuard[Sharded]:
    """Whether each rank has a part of the tensor only; no buffer is sharded."""
    return hasattr(tensor, "ds_tensor")


def shape_of(parameter: Tensor) -> tuple[int, ...]:
    """Shape of the whole parameter, partitioned or not."""
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _elements(parameter: Tensor) -> int:
    return getattr(parameter, "ds_numel", parameter.numel())
