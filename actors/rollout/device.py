"""Starts vLLM with settings for the device at hand. All that a CPU needs is set here; a GPU gets vLLM's own defaults.
Settings of a recipe apply on both."""

import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from actors.rollout.config import EngineConfig
from actors.weights.host import BACKEND, WORKER

IN_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The executor whose worker is in the core's process. A worker of its own starts in as many seconds again, and every
step waits for its answer."""


def environment(config: EngineConfig, *, cpu: bool) -> dict[str, str]:
    """Environment variables of vLLM's processes."""
    threads = 1 if config.threads is None and cpu else config.threads
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    if cpu:
        # Bound to cores, several engines and a learner would share the first ones.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if config.enforce_eager in (None, True):
            # Some samplers are compiled even so, at the first request, for seconds.
            variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


def arguments(config: EngineConfig, *, cpu: bool, max_tokens: int) -> dict[str, Any]:
    """AsyncEngineArgs that depend on the device; those that are left out are vLLM's to choose."""
    chosen: dict[str, Any] = {
        "enforce_eager": config.enforce_eager,
        "enable_chunked_prefill": config.chunked_prefill,
        "block_size": config.block_size,
    }
    if config.tensor_parallel > 1:
        # In an actor's placement group vLLM would have Ray place its workers, a bundle each; the engine's one bundle
        # holds what all of them need.
        chosen["distributed_executor_backend"] = "mp"
    if cpu:
        # A seeded request whose prefill is cut ends the engine: a prefill has to fit into a batch as a whole.
        cautious = {"enforce_eager": True, "enable_chunked_prefill": False}
        chosen = cautious | {name: value for name, value in chosen.items() if value is not None}
        chosen["max_num_batched_tokens"] = max(8192, max_tokens)
        chosen["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
        if config.tensor_parallel == 1 and config.threads in (None, 1):
            # Named as "uni", vLLM would put "mp" in its place on a CPU, for the sake of OpenMP's threads.
            chosen["distributed_executor_backend"] = IN_CORE
    else:
        chosen["enable_sleep_mode"] = config.sleep_mode or None
    if not cpu and config.chunked_prefill is False:
        chosen["max_num_batched_tokens"] = max(8192, max_tokens)
    return {name: value for name, value in chosen.items() if value is not None}


def message_ends(model: Path, tag_tokens: frozenset[int]) -> list[int]:
    """The tokens that end a message according to the model's folder. Tags are left out: each request has its turn's own
    stops, and a grammar could not contain a token that always ends a request."""
    path = model / "generation_config.json"
    ids = json.loads((path if path.exists() else model / "config.json").read_text()).get("eos_token_id")
    return [one for one in ([ids] if isinstance(ids, int) else ids or []) if one not in tag_tokens]


def start_llm(
    model_dir: str, config: EngineConfig, *, max_tokens: int, tag_tokens: frozenset[int], measured: bool = False
) -> Any:
    """AsyncLLM, set up so that a request's tokens don't depend on the requests beside it.

    `max_tokens`: the largest length of an episode. `tag_tokens`: ids of the tokens that are tags. `measured`: whether
    vLLM's own metrics are taken at each step, for Prometheus.
    """
    cpu = _on_cpu()
    _set(environment(config, cpu=cpu))
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    # Only the tokens that end a message are taken from the model's folder: all else is in the requests.
    with tempfile.TemporaryDirectory() as folder:
        ends = {"eos_token_id": message_ends(Path(model_dir), tag_tokens)}
        Path(folder, "generation_config.json").write_text(json.dumps(ends))
        given = AsyncEngineArgs(
            model=model_dir,
            generation_config=folder,
            dtype=config.dtype,  # pyright: ignore[reportArgumentType]
            max_model_len=max_tokens,
            max_num_seqs=config.max_concurrent,
            enable_prefix_caching=True,
            tensor_parallel_size=config.tensor_parallel,
            gpu_memory_utilization=config.gpu_memory_utilization,
            scheduling_policy="priority",
            logprobs_mode="processed_logprobs",
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=WORKER,
            disable_log_stats=not measured,
            **arguments(config, cpu=cpu, max_tokens=max_tokens),
        )
        return AsyncLLM.from_engine_args(given)


def _on_cpu() -> bool:
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def _set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if name == "OMP_NUM_THREADS":  # Ray sets it for every actor
            os.environ[name] = value
        else:
            os.environ.setdefault(name, value)
