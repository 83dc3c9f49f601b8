"""Buffers in device memory shared by two processes of one machine: tensors in this process, handles for the other.

On a GPU a handle is a CUDA IPC handle, as `torch.multiprocessing` makes it; on a CPU it names a file in shared memory,
which both processes map.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from actors.weights.segment import opened
from coa.json_object import Json

if TYPE_CHECKING:
    from actors.weights.parts import ModelParts

TensorHandle = Json
"""Plain data by which another process opens the memory."""
CUDA_OFFSET, CUDA_MEMORY = 3, 7
"""Indices into the arguments that `reduce_tensor` returns for a GPU tensor: the tensor's offset, and the start of the
arguments that identify the memory. The arguments before them describe the tensor and its GPU, which the other process
may number differently."""


def device_name(device: torch.device) -> str:
    """Name of the device, the same for all processes of a machine that use it."""
    return str(torch.cuda.get_device_properties(device).uuid) if device.type == "cuda" else device.type


def own_device() -> torch.device:
    """Device that this process computes on."""
    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


@contextmanager
def shared_buffers(
    path: Path, count: int, nbytes: int, device: torch.device
) -> Iterator[tuple[list[Tensor], list[TensorHandle]]]:
    """`count` buffers of `nbytes` each, and their handles. `path`: base of the file names, if files are used.

    The memory is freed when the context ends. On a GPU, memory that another process had open when it was killed stays
    allocated until this process ends."""
    tensors: list[Tensor] = []
    handles: list[TensorHandle] = []
    files = [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(count)]
    try:
        for file in files:
            tensor, handle = _on_gpu(nbytes, device) if device.type == "cuda" else _in_file(file, nbytes)
            tensors.append(tensor)
            handles.append(handle)
            del tensor
        yield tensors, handles
    finally:
        tensors.clear()
        for file in files:
            file.unlink(missing_ok=True)
        _collect()


def _on_gpu(nbytes: int, device: torch.device) -> tuple[Tensor, TensorHandle]:
    from torch.multiprocessing.reductions import reduce_tensor

    tensor = torch.empty(nbytes, dtype=torch.uint8, device=device)
    arguments: Any = reduce_tensor(tensor)[1]
    memory = [one.hex() if isinstance(one, bytes) else one for one in arguments[CUDA_MEMORY:]]
    return tensor, {"nbytes": nbytes, "offset": arguments[CUDA_OFFSET], "cuda": memory}


def _in_file(path: Path, nbytes: int) -> tuple[Tensor, TensorHandle]:
    with opened(path, os.O_RDWR | os.O_CREAT) as file:
        os.posix_fallocate(file, 0, nbytes)  # without it, writing when shared memory is full would kill the process
    return _mapped(path), {"nbytes": nbytes, "file": str(path)}


def opened_buffers(handles: Sequence[TensorHandle]) -> list[Tensor]:
    """Opens the buffers of another process; they are released when the returned tensors are. Raises OSError or
    RuntimeError if they can't be opened."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    found: list[Tensor] = []
    for handle in handles:
        if "file" in handle:
            found.append(_mapped(Path(handle["file"])))
            continue
        size, device = torch.Size([handle["nbytes"]]), torch.cuda.current_device()
        kind = [torch.Tensor, size, (1,), handle["offset"], torch.storage.TypedStorage, torch.uint8, device]
        memory = [bytes.fromhex(one) if isinstance(one, str) else one for one in handle["cuda"]]
        found.append(rebuild_cuda_tensor(*kind, *memory))
    return found


def _mapped(path: Path) -> Tensor:
    return torch.from_numpy(np.memmap(path, np.uint8, "r+"))


def _collect() -> None:
    """Frees CUDA memory that no other process has open any more."""
    if torch.cuda.is_available():
        torch.cuda.ipc_collect()


def buckets_of(parts: "ModelParts", buffers: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    """Copies a model that is entirely on this rank into the buffers in turn, and yields (index, bucket) once a bucket
    is complete. A bucket is valid until its buffer is used again."""
    layout, index = parts.layout, 0
    for at, piece in parts.tensors():
        while len(piece):
            start, stop = layout.bucket(index)
            target, some = buffers[index % len(buffers)], piece[: stop - at]
            target[at - start : at - start + len(some)].copy_(some)
            at, piece = at + len(some), piece[len(some) :]
            if at == stop:
                if target.is_cuda:
                    torch.cuda.synchronize(target.device)  # another process does not wait for this one's stream
                yield index, target[: stop - start]
                index += 1
