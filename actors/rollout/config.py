"""Configuration of a rollout engine: how it samples, and how it runs.

A value of None is chosen for the device (`actors.rollout.device`).
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class SamplingConfig:
    temperature: float = 1.0
    """0 is greedy decoding."""
    top_p: float = 1.0
    """Nucleus sampling: tokens within this share of probability; 1 takes all."""


class KvOnUpdate(Enum):
    """What happens to the KV cache of episodes under way when new weights are loaded."""

    recompute = "recompute"
    """The cache is computed again, so that each log-prob is exactly that of the version which sampled the token."""
    keep = "keep"
    """The cache is kept. This is faster, but tokens after an update are sampled with the older version's cache, so that
    their recorded log-probs, though those of sampling, are not those of any one version."""


@dataclass(frozen=True)
class EngineConfig:
    dtype: str = "float32"
    """Type of the weights that sample: float32, bfloat16 or float16."""
    max_concurrent: int = 128
    """Requests in a batch of the engine."""
    block_size: int | None = None
    """Tokens of a block of the KV cache; only whole blocks are shared. None takes vLLM's choice, 128 on CPU."""
    kv_cache_gib: float = 1.0
    """On CPU; on a GPU `gpu_memory_utilization` decides."""
    gpu_memory_utilization: float = 0.85
    """Share of the GPU's memory that the engine takes for weights and KV cache."""
    tensor_parallel: int = 1
    """GPUs that one engine's model is split over."""
    enforce_eager: bool | None = None
    """Whether nothing is compiled or captured in graphs. None: on a CPU."""
    chunked_prefill: bool | None = None
    """Whether a long prompt may be computed in pieces. None: on a GPU."""
    threads: int | None = None
    """CPU threads of the engine. None: one where it computes on the CPU."""
    sleep_mode: bool = False
    """Whether engines and learners that share GPUs take turns: while learners learn, an engine gives up its GPU's
    memory (vLLM's sleep mode), until it loads the next weights. Needs `rl.window.max_staleness=0`."""
    kv_on_update: KvOnUpdate = KvOnUpdate.recompute
    """Whether the KV cache of episodes under way is computed again or kept when new weights are loaded."""
    probe_tolerance: float = 1e-4
    """Difference of log-probs between learner and engine after a sync above which the record has an alarm. The run goes
    on nevertheless, since other checks make sure that the weights are complete and in use (`actors.weights.loader`)."""
