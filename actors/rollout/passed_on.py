"""The engine's `arguments`: what a recipe may pass on to vLLM, and what it may not since the product sets it."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from coa.errors import UserError

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs

SETTINGS = {
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
FIXED = {
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


def check_arguments(arguments: Mapping[str, object]) -> None:
    """Raises UserError for an argument that the product sets, or that vLLM's engine does not have."""
    for name in arguments:
        if name in SETTINGS:
            raise UserError(f"engine.arguments.{name} has a setting of its own: {SETTINGS[name]}")
        if name in FIXED:
            raise UserError(f"engine.arguments.{name} can't be changed: {FIXED[name]}")
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
