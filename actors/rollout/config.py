"""Configuration of a rollout engine: how it samples, and how it runs.

A value of None is chosen for the device (`actors.rollout.device`).
"""

from dataclasses import dataclass
from enum import Enum


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling of the policy."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy decoding."""
    top_p: float = 1.0
    """Nucleus sampling: only the likeliest tokens that have this probability together are sampled; 1 samples from
    all."""


class KvOnUpdate(Enum):
    """What happens to the KV cache of episodes under way when new weights are loaded."""

    recompute = "recompute"
    """The cache is computed again, so that each log-prob is exactly that of the version which sampled the token."""
    keep = "keep"
    """The cache is kept, also for later turns of these episodes. This is faster, but tokens after an update are sampled
    with the older version's cache, so that their recorded log-probs, though those of sampling, are not those of any one
    version. Episodes that begin after the update use nothing of it."""


@dataclass(frozen=True)
class EngineConfig:
    """The vLLM engine that samples the policy."""

    dtype: str = "float32"
    """Number type of the engine's weights: float32, bfloat16 or float16."""
    max_concurrent: int = 128
    """Most requests in a batch of the engine. More of them need a larger KV cache."""
    block_size: int | None = None
    """Tokens in a block of the KV cache; requests share only whole blocks. None takes vLLM's choice, 128 on a CPU."""
    kv_cache_gib: float = 1.0
    """Size of the KV cache on a CPU. On a GPU `gpu_memory_utilization` determines it."""
    gpu_memory_utilization: float = 0.85
    """Share of the GPU's memory that the engine takes for weights and KV cache. Lower it if learners share the GPU."""
    tensor_parallel: int = 1
    """GPUs over which one engine's model is split."""
    enforce_eager: bool | None = None
    """Whether compilation and CUDA graphs are switched off. None: only on a CPU."""
    chunked_prefill: bool | None = None
    """Whether a long prompt may be computed in parts. None: only on a GPU."""
    threads: int | None = None
    """CPU threads of the engine; None takes one if the engine runs on a CPU."""
    sleep_mode: bool = False
    """Whether engines and learners that share GPUs take turns: while learners train, an engine frees its GPU memory
    (vLLM's sleep mode) until it loads the next weights. Needs `rl.window.max_staleness=0`."""
    kv_on_update: KvOnUpdate = KvOnUpdate.recompute
    """What happens to the KV cache of episodes under way when new weights are loaded. recompute computes it again, so
    that log-probs are exactly those of the version that sampled. keep is faster, with log-probs of no single
    version."""
    probe_tolerance: float = 1e-4
    """Difference of log-probs between learner and engine after a load of new weights above which `sync_alarms` counts
    an alarm. The run continues, since other checks make sure that the weights are complete and used. Raise it for
    pretrained models."""
