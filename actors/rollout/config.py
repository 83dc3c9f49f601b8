"""What a rollout engine is configured with: how it samples, and how it runs.

None leaves a choice to the device (`actors.rollout.device`).
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class SamplingConfig:
    temperature: float = 1.0
    """0 is greedy decoding."""
    top_p: float = 1.0


class KvOnUpdate(Enum):
    """What becomes of the KV cache of episodes under way when new weights are loaded."""

    recompute = "recompute"
    """A token's log-prob is exactly its version's."""
    keep = "keep"
    """Faster; after an update only the recorded log-prob of a token holds."""


@dataclass(frozen=True)
class EngineConfig:
    dtype: str = "float32"
    max_concurrent: int = 128
    """Requests in a batch of the engine."""
    block_size: int | None = None
    """Tokens of a block of the KV cache; only whole blocks are shared. None takes vLLM's choice, 128 on CPU."""
    kv_cache_gib: float = 1.0
    """On CPU; on a GPU `gpu_memory_utilization` decides."""
    gpu_memory_utilization: float = 0.85
    tensor_parallel: int = 1
    enforce_eager: bool | None = None
    """Whether nothing is compiled or captured in graphs. None: on a CPU."""
    chunked_prefill: bool | None = None
    """Whether a long prompt may be computed in pieces. None: on a GPU."""
    threads: int | None = None
    """CPU threads of the engine. None: one where it computes on the CPU."""
    kv_on_update: KvOnUpdate = KvOnUpdate.recompute
    probe_tolerance: float = 1e-4
    """Difference of log-probs between learner and engine after a sync from which on the record has an alarm. A run
    goes on: whether weights are whole and in use is checked otherwise (`actors.weights.loader`)."""
