"""Configuration of a rollout engine: sampling, and vLLM's settings.

A value of None is resolved for the device (`actors.rollout.device`).
"""

from dataclasses import dataclass, field
from enum import Enum

from coa.json_object import Json


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling of the policy."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy decoding."""
    top_p: float = 1.0
    """Nucleus sampling: only the likeliest tokens whose probabilities add up to this are sampled; 1 samples from all
    tokens."""


class KvOnUpdate(Enum):
    """What happens to the KV cache of episodes under way when new weights are loaded."""

    recompute = "recompute"
    """The cache is recomputed, so that each log-prob is exactly that of the weight version that sampled the token."""
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
    """Maximum number of requests in a batch of the engine. More requests need a larger KV cache."""
    block_size: int | None = None
    """Tokens in a block of the KV cache; requests share only whole blocks. None: vLLM's default, 128 on a CPU."""
    kv_cache_gib: float = 1.0
    """Size of the KV cache in GiB on a CPU. On a GPU `gpu_memory_utilization` determines the size."""
    gpu_memory_utilization: float = 0.85
    """Share of the GPU's memory that the engine takes for weights and KV cache. Lower it if learners share the GPU."""
    tensor_parallel: int = 1
    """Number of GPUs over which one engine's model is split."""
    enforce_eager: bool | None = None
    """Whether compilation and CUDA graphs are disabled. None: only on a CPU."""
    chunked_prefill: bool | None = None
    """Whether the prefill of a long prompt may be split. None: only on a GPU."""
    threads: int | None = None
    """Number of the engine's CPU threads. None: 1 on a CPU, the environment's OMP_NUM_THREADS on a GPU."""
    sleep_mode: bool = False
    """Whether engines and learners that share GPUs take turns: while learners train, an engine frees its GPU memory
    (vLLM's sleep mode) until it loads the next weights. Needs `rl.window.max_staleness=0`."""
    kv_on_update: KvOnUpdate = KvOnUpdate.recompute
    """What happens to the KV cache of episodes under way when new weights are loaded. recompute recomputes it, so that
    log-probs are exactly those of the weight version that sampled. keep is faster, with log-probs of no single
    version."""
    arguments: Json = field(default_factory=Json)
    """Further arguments of vLLM's engine, passed on as they are: fields of its `AsyncEngineArgs`, such as
    `{attention_backend: FLASH_ATTN}`. Those that other settings determine are refused."""
    probe_tolerance: float = 1e-4
    """Maximum difference of log-probs between learner and engine after a weight update, and ten times the maximum mean
    difference; `sync_alarms` counts larger ones, and log-probs that have not changed. The run continues, since other
    checks ensure that the weights are complete and in use. Raise it for pretrained models."""

    @property
    def mean_tolerance(self) -> float:
        """Maximum mean difference, in which rounding cancels out: in bfloat16 it is some hundredths of a nat beside a
        maximum of several tenths, and in float32 a thirtieth of the maximum."""
        return self.probe_tolerance / 10
