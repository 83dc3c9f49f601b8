"""The host path for weights: one safetensors file in shared memory, read by each vLLM worker of an engine.

It works everywhere, needs no process group, and suits an engine that joins late. `register` is an entry point of
the group `vllm.general_plugins`, so every vLLM process knows the backend by the name BACKEND.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from coa.weights import Weights

BACKEND = "coa_host"
_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def in_shared_memory(weights: Weights) -> Iterator[Path]:
    """A file of the weights for as long as the context lasts."""
    with tempfile.NamedTemporaryFile(dir=_SHARED_MEMORY, prefix="coa-weights-") as file:
        weights.tofile(file)
        file.flush()
        yield Path(file.name)


def register() -> None:
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    if BACKEND not in WeightTransferEngineFactory._registry:  # plugins may be loaded more than once in a process
        WeightTransferEngineFactory.register_engine(
            BACKEND, "actors.weight_transfer_engine", "HostWeightTransferEngine"
        )
