"""A manifest of a model's weights: the place of each tensor in the flattened model, and a digest for each bucket.

    tensors   |--embed--|-norm-|------ q_proj ------|-- k_proj --|      laid out without gaps, widest types first
    buckets   |----- 0 -----|----- 1 -----|----- 2 -----|-- 3 --|       of equal size; a tensor may span several
    digests        xxh3         xxh3           xxh3        xxh3

The layout is that of a safetensors file: a header and the bytes together are such a file. Nothing here needs torch.
"""

import json
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import xxhash
from numpy.typing import NDArray

from coa.errors import DamagedWeights, IncompleteWeights, SyncError, WrongVersion
from coa.json_object import Json, JsonView

if TYPE_CHECKING:
    import torch

Weights = NDArray[np.uint8]
"""A whole safetensors file in memory."""
Buffer = bytes | memoryview | NDArray[np.generic]
ITEM_BYTES = {
    "F64": 8,
    "I64": 8,
    "F32": 4,
    "I32": 4,
    "BF16": 2,
    "F16": 2,
    "I16": 2,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I8": 1,
    "U8": 1,
    "BOOL": 1,
}
"""Bytes per element, by safetensors type name."""
ALIGNMENT = 8
"""Alignment of the boundaries of shares, in bytes: a multiple of every element's size."""
NAMED = 3
"""Maximum number of tensors that an error names."""


@dataclass(frozen=True, slots=True)
class TensorSpan:
    """The place of a tensor in the flattened model: bytes `start` to `stop`."""

    name: str
    dtype: str
    """The safetensors type name, such as "BF16"."""
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True)
class Layout:
    """The flattened model: its tensors in the order of their bytes, and the size of a bucket."""

    tensors: tuple[TensorSpan, ...]
    bucket_bytes: int

    def __post_init__(self) -> None:
        if self.bucket_bytes < 1:
            raise ValueError(f"a bucket of {self.bucket_bytes} bytes, expected at least 1")

    @property
    def nbytes(self) -> int:
        return self.tensors[-1].stop if self.tensors else 0

    @property
    def buckets(self) -> int:
        return -(-self.nbytes // self.bucket_bytes)

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(tensor.name for tensor in self.tensors)

    def bucket(self, index: int) -> tuple[int, int]:
        """Start and end (exclusive) of a bucket, in bytes; raises IncompleteWeights if there is no such bucket."""
        if not 0 <= index < self.buckets:
            raise IncompleteWeights(f"there is no bucket {index} of {self.buckets}")
        start = index * self.bucket_bytes
        return start, min(start + self.bucket_bytes, self.nbytes)

    def shares(self, among: int) -> list[tuple[int, int]]:
        """Equal byte ranges of the model, in order; no boundary cuts an element."""
        cuts = [self.nbytes * i // among // ALIGNMENT * ALIGNMENT for i in range(among)] + [self.nbytes]
        return list(pairwise(cuts))

    def header(self) -> bytes:
        """The part of a safetensors file before the bytes of the model."""
        entries: Json = {"__metadata__": {"format": "pt"}}
        for tensor in self.tensors:
            offsets = [tensor.start, tensor.stop]
            entries[tensor.name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": offsets}
        text = json.dumps(entries, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        return struct.pack("<Q", len(text)) + text


@dataclass(frozen=True, slots=True)
class Manifest:
    """Description of one version of the weights: its layout, and the digest of each bucket."""

    version: int
    layout: Layout
    digests: tuple[bytes, ...]

    @property
    def fingerprint(self) -> str:
        """Digest of all buckets, as 32 hexadecimal digits; independent of the version number."""
        return digest(b"".join(self.digests)).hex()

    def check_bucket(self, index: int, data: Buffer | None) -> None:
        """Raises IncompleteWeights if bucket `index` is missing or has the wrong size, DamagedWeights if its digest
        differs."""
        start, stop = self.layout.bucket(index)
        if data is None:
            raise IncompleteWeights(f"version {self.version}: bucket {index} of {self.layout.buckets} is missing")
        if (size := memory_of(data).nbytes) != stop - start:
            raise IncompleteWeights(f"version {self.version}: bucket {index} has {size} bytes, not {stop - start}")
        if digest(data) != self.digests[index]:
            raise DamagedWeights(f"version {self.version}: bucket {index} of {self.layout.buckets} was changed")

    def check(self, data: NDArray[np.uint8]) -> None:
        """Checks all buckets of the flattened model, and its size."""
        if len(self.digests) != self.layout.buckets:
            raise IncompleteWeights(f"version {self.version}: {len(self.digests)} of {self.layout.buckets} digests")
        if len(data) > self.layout.nbytes:
            raise DamagedWeights(f"version {self.version}: {len(data)} bytes, not {self.layout.nbytes}")
        for index in range(self.layout.buckets):
            start, stop = self.layout.bucket(index)
            self.check_bucket(index, data[start:stop] if start < len(data) else None)

    def check_names(self, loaded: Collection[str]) -> None:
        """Raises IncompleteWeights if a tensor of the manifest was not loaded, or a loaded tensor is not in it."""
        if left := sorted(self.layout.names - set(loaded)):
            raise IncompleteWeights(f"version {self.version}: not loaded: {some(left)}")
        if extra := sorted(set(loaded) - self.layout.names):
            raise IncompleteWeights(f"version {self.version}: loaded without being published: {some(extra)}")

    def check_version(self, version: int) -> None:
        """Raises WrongVersion if these weights are not of this version."""
        if self.version != version:
            raise WrongVersion(f"these weights are version {self.version}, not {version}")


def some(names: Sequence[str]) -> str:
    """A few of the names, and how many there are."""
    shown = ", ".join(names[:NAMED])
    return shown if len(names) <= NAMED else f"{shown} and {len(names) - NAMED} more"


def digest(data: Buffer) -> bytes:
    """16 bytes, xxh3_128 (https://xxhash.com): detects damage, not attacks."""
    return xxhash.xxh3_128_digest(memory_of(data))


def memory_of(data: Buffer) -> memoryview:
    return data.data if isinstance(data, np.ndarray) else memoryview(data)


def lay_out(tensors: Iterable[tuple[str, str, Sequence[int]]], bucket_bytes: int) -> Layout:
    """The layout of tensors with these names, types and shapes: sorted by element size, largest first, and otherwise in
    the given order, so that each tensor begins at a multiple of its element size. Raises ValueError for an unknown type
    or a duplicate name."""
    known = list(tensors)
    if unknown := sorted({dtype for _, dtype, _ in known} - ITEM_BYTES.keys()):
        raise ValueError(f"no such type of weights: {', '.join(unknown)}")
    if len({name for name, _, _ in known}) != len(known):
        raise ValueError("two tensors have the same name")
    spans: list[TensorSpan] = []
    at = 0
    for name, dtype, shape in sorted(known, key=lambda tensor: -ITEM_BYTES[tensor[1]]):
        size = ITEM_BYTES[dtype] * int(np.prod(shape, dtype=np.int64))
        spans.append(TensorSpan(name, dtype, tuple(shape), at, at + size))
        at += size
    return Layout(tuple(spans), bucket_bytes)


def seal(version: int, layout: Layout, read: Callable[[int, int], Buffer]) -> Manifest:
    """The manifest of weights; `read(start, stop)` returns those bytes and is called once per bucket."""
    digests = tuple(digest(read(*layout.bucket(index))) for index in range(layout.buckets))
    return Manifest(version, layout, digests)


def read_header(data: "memoryview | bytes", where: str, bucket_bytes: int) -> tuple[Layout, int]:
    """The layout of a safetensors file from its first bytes, and the offset of the model's bytes; raises SyncError if
    it is not a safetensors file."""
    try:
        (length,) = struct.unpack_from("<Q", data)
        entries: JsonView = json.loads(bytes(data[8 : 8 + length]))
    except (struct.error, ValueError) as error:
        raise SyncError(f"{where}: not a safetensors file") from error
    spans = [
        TensorSpan(name, entry["dtype"], tuple(entry["shape"]), *entry["data_offsets"])
        for name, entry in entries.items()
        if name != "__metadata__"
    ]
    return Layout(tuple(sorted(spans, key=lambda span: (span.start, span.stop))), bucket_bytes), 8 + length


def read_layout(path: Path, bucket_bytes: int) -> tuple[Layout, int]:
    """Like `read_header`, for a file on disk."""
    try:
        with path.open("rb") as file:
            prefix = file.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            return read_header(prefix + file.read(min(length, path.stat().st_size)), str(path), bucket_bytes)
    except OSError as error:
        raise SyncError(f"{path}: {error.strerror}") from error


def serialise(state: "Mapping[str, torch.Tensor]") -> Weights:
    """A safetensors file in memory, from tensors that are not sharded."""
    from safetensors.torch import save  # imports torch

    contiguous = {name: tensor.contiguous().cpu() for name, tensor in state.items()}
    return np.frombuffer(save(contiguous, metadata={"format": "pt"}), np.uint8)
