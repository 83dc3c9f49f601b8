"""Configuration of a rollout engine: sampling, vLLM's settings, and what may be passed on to vLLM as it is.

A value of None is resolved for the device (`actors.rollout.device`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from coa.bounds import Above0, AtLeast1, PositiveShare
from coa.errors import UserError
from coa.json_object import Json

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs

OWN_SETTINGS = {
    "model": "model.path",
    "dtype": "engine.dtype",
    "max_model_len": "agent.limits.max_tokens",
    "max_num_seqs": "engine.max_concurrent",
    "tensor_parallel_size": "engine.tensor_parallel",
    "gpu_memory_utilization": "engine.gpu_memory_utilization",
    "enforce_eager": "engine.enforce_eager",
    "enable_chunked_prefill": "engine.chunked_prefill",
    "block_size": "engine.block_size",
    "enable_sleep_mode": "engine.sleep_mode",
}
"""Arguments of vLLM that have a setting of their own."""
FIXED_ARGUMENTS = {
    "generation_config": "sampling is that of each request",
    "enable_prefix_caching": "the turns of an episode share their beginning",
    "scheduling_policy": "log-probs are asked before episodes",
    "logprobs_mode": "the learner is trained with the log-probs of sampling",
    "weight_transfer_config": "weights come by rl.weights.transport",
    "worker_extension_cls": "weights come by rl.weights.transport",
    "disable_log_stats": "a server has metrics, an engine of a run has none",
    "distributed_executor_backend": "the processes of an engine end with it",
}
"""Arguments of vLLM that have to be as they are, and why."""


@dataclass(frozen=True)
class SamplingConfig:
    """Sampling of the policy."""

    temperature: float = 1.0
    """Sampling temperature; 0 is greedy decoding."""
    top_p: PositiveShare = 1.0
    """Nucleus sampling: only the likeliest tokens whose probabilities add up to this are sampled; 1 samples from all
    tokens."""
    top_k: Annotated[int, Ge(0)] = 0
    """Number of the likeliest tokens that are sampled; 0 samples from all."""


class KvOnUpdate(Enum):
    """Treatment of the KV cache of episodes under way when new weights are loaded."""

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
    max_concurrent: AtLeast1 = 128
    """Maximum number of requests in a batch of the engine. More requests need a larger KV cache."""
    block_size: AtLeast1 | None = None
    """Tokens in a block of the KV cache; requests share only whole blocks. None: 32 on a CPU, vLLM's
    default on a GPU."""
    kv_cache_gib: Above0 = 1.0
    """Size of the KV cache in GiB on a CPU. On a GPU `gpu_memory_utilization` determines the size."""
    gpu_memory_utilization: PositiveShare = 0.85
    """Share of the GPU's memory that the engine takes for weights and KV cache. Lower it if learners share the GPU."""
    tensor_parallel: AtLeast1 = 1
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


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Raises UserError for an argument that the product sets, or that vLLM's engine does not have."""
    for name in arguments:
        if name in OWN_SETTINGS:
            raise UserError(f"engine.arguments.{name} has a setting of its own: {OWN_SETTINGS[name]}")
        if name in FIXED_ARGUMENTS:
            raise UserError(f"engine.arguments.{name} can't be changed: {FIXED_ARGUMENTS[name]}")
    if arguments:
        known = sorted(field.name for field in fields(_arguments_of_vllm()))
        if unknown := sorted(set(arguments) - set(known)):
            raise UserError(f"engine.arguments.{unknown[0]} is no argument of vLLM's engine{_like(unknown[0], known)}")


def _like(name: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, 1)
    return f": is {near[0]} meant ?" if near else ""


def _arguments_of_vllm() -> "type[AsyncEngineArgs]":
    from vllm import AsyncEngineArgs  # takes seconds, which only those pay who pass something on

    return AsyncEngineArgs
