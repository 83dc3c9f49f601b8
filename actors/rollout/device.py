"""Starts vLLM with settings for the device in use. All settings that a CPU needs are made here; a GPU gets vLLM's own
defaults. A recipe's settings apply on both.

Files outside of a run's folder that vLLM's processes make and, if they are killed, leave (sockets in the temporary
folder, semaphores in /dev/shm) have names of each engine's own; the next engine on the machine removes those of engines
that are gone.
"""

import fcntl
import json
import multiprocessing
import os
import secrets
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from actors.rollout.config import EngineConfig
from actors.weights.host import BACKEND, WORKER
from coa.builds import FOR_GPUS
from coa.errors import UserError
from coa.json_object import Json, JsonView
from coa.planning.memory import PREFILL_TOKENS

if TYPE_CHECKING:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

IN_CORE = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The executor whose worker runs in the core's process. A separate worker process would start later, and the core would
wait for each of its steps in a loop that keeps a CPU busy."""


PRELOAD, SEARCHED = "LD_PRELOAD", "LD_LIBRARY_PATH"
UNRESERVED = 0.02
"""Share of a GPU's memory that has to be free for an engine that has reserved no GPU. What it takes is given by
`kv_cache_gib`, as on a CPU."""
SPAWNED = {"VLLM_WORKER_MULTIPROC_METHOD": "spawn"}
"""vLLM's processes begin anew: a forked one can't use a GPU if this process has only asked whether there is one."""
PATIENT = {"VLLM_ENGINE_READY_TIMEOUT_S": "86400", "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": "86400"}
"""vLLM's own limits, which are fixed: the owner of an engine ends it by its measured pace (`cluster.health`)."""


COMMON = {
    "enable_prefix_caching": True,
    "scheduling_policy": "priority",
    "logprobs_mode": "processed_logprobs",
    "worker_extension_cls": WORKER,
}

BLOCK_SIZE = 32
"""Tokens in a block of a CPU's KV cache; its kernels need a multiple of this."""
FOLDER_PREFIX = "coa-engine-"
SHARED_MEMORY = Path("/dev/shm")
_locks: list[int] = []
"""Descriptors of the locks of this process's folders."""


def environment(config: EngineConfig, *, cpu: bool) -> dict[str, str]:
    """Environment variables of vLLM's processes."""
    threads = 1 if config.threads is None and cpu else config.threads
    variables = {} if threads is None else {"OMP_NUM_THREADS": str(threads)}
    if config.dtype == "float32" and not cpu:
        # Triton's kernels would multiply in TF32, ten bits, and log-probs would be a thousandth off the learner's.
        variables["TRITON_F32_DEFAULT"] = "ieee"
    if cpu:
        # If threads were bound to cores, several engines and a learner would all be bound to the first cores.
        variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
        if config.enforce_eager in (None, True):
            # Even with enforce_eager, some samplers are compiled at the first request, which takes seconds.
            variables["TORCHDYNAMO_DISABLE"] = "1"
    return variables


def preloaded(libraries: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Environment variables that preload PyTorch's OpenMP from a folder whose path has blanks; empty for other folders.

    By itself vLLM puts the library's path into LD_PRELOAD, which the dynamic loader splits at blanks: each process that
    is started later would print two errors. The loader finds a library's name in LD_LIBRARY_PATH, which may have
    blanks. variables: the environment so far.
    """
    found = sorted(libraries.glob("libgomp*.so*"))
    chosen = any(name in variables.get(PRELOAD, "") for name in ("libgomp", "libomp", "libiomp"))
    if chosen or not found or not any(letter.isspace() for letter in str(libraries)):
        return {}
    return {
        PRELOAD: ":".join(filter(None, [variables.get(PRELOAD), found[0].name])),
        SEARCHED: ":".join(filter(None, [str(libraries), variables.get(SEARCHED)])),
    }


def arguments(config: EngineConfig, *, cpu: bool, max_tokens: int, gpus: float) -> Json:
    """AsyncEngineArgs by the recipe and the device; vLLM chooses those that are left out. gpus: reserved for the
    engine; with none of them, vLLM's build for GPUs takes as little as possible of the first one."""
    chosen: Json = {
        **COMMON,
        "dtype": config.dtype,
        "max_model_len": max_tokens,
        "max_num_seqs": config.max_concurrent,
        "tensor_parallel_size": config.tensor_parallel,
        "enforce_eager": config.enforce_eager,
        "enable_chunked_prefill": config.chunked_prefill,
        "block_size": config.block_size,
    }
    if config.tensor_parallel > 1:
        # In an actor's placement group vLLM would let Ray place one worker per bundle; the engine's single bundle holds
        # the resources of all workers.
        chosen["distributed_executor_backend"] = "mp"
    if cpu:
        # A seeded request whose prefill is split crashes the engine, so a batch must hold a whole prefill. Only whole
        # blocks are shared, and what small models on CPUs are asked is shorter than vLLM's 128 tokens.
        own = {"enforce_eager": True, "enable_chunked_prefill": False, "block_size": BLOCK_SIZE}
        chosen = own | {name: value for name, value in chosen.items() if value is not None}
        chosen["max_num_batched_tokens"] = max(PREFILL_TOKENS, max_tokens)
        chosen["kv_cache_memory_bytes"] = int(config.kv_cache_gib * 2**30)
        if config.tensor_parallel == 1:
            # If it were given as "uni", vLLM would replace it by "mp" on a CPU, because of OpenMP's threads.
            chosen["distributed_executor_backend"] = IN_CORE
    else:
        chosen["enable_sleep_mode"] = config.sleep_mode or None
        # vLLM's own default is 2048 for an engine, and that of its server 8192 on large GPUs. After new weights the
        # contexts of all running requests are computed again.
        least = max_tokens if config.chunked_prefill is False else 0
        chosen["max_num_batched_tokens"] = max(PREFILL_TOKENS, least)
        chosen["gpu_memory_utilization"] = config.gpu_memory_utilization
        if not gpus:
            chosen |= {
                "gpu_memory_utilization": UNRESERVED,
                "kv_cache_memory_bytes": int(config.kv_cache_gib * 2**30),
            }
    return {name: value for name, value in chosen.items() if value is not None and name not in config.arguments}


def message_ends(model: Path, tag_tokens: frozenset[int]) -> list[int]:
    """Token ids that end a message according to the model's folder. Tags are left out: each request has the stops of
    its turn, and a grammar could not contain a token that always ends a request."""
    path = model / "generation_config.json"
    ids = json.loads((path if path.exists() else model / "config.json").read_text()).get("eos_token_id")
    return [one for one in ([ids] if isinstance(ids, int) else ids or []) if one not in tag_tokens]


def start_llm(
    model_dir: str,
    config: EngineConfig,
    *,
    max_tokens: int,
    tag_tokens: frozenset[int],
    measured: bool = False,
    gpus: float = 0.0,
) -> "AsyncLLM":
    """AsyncLLM, set up so that a request's tokens don't depend on the other requests in its batch.

    `max_tokens`: maximum length of an episode. `tag_tokens`: ids of the tokens that are tags. `measured`: whether vLLM
    records its own metrics at each step, for Prometheus. `gpus`: reserved for the engine. Raises UserError if there are
    some and vLLM's build is for CPUs.
    """
    cpu = on_cpu()
    if cpu and gpus:
        raise UserError(f"placement.engine_gpus is {gpus:g}, and the installed vLLM is built for CPUs: {FOR_GPUS}")
    _set({**PATIENT, **SPAWNED, **environment(config, cpu=cpu)})
    os.environ["VLLM_RPC_BASE_PATH"] = str(own_place())
    if cpu:
        preload_openmp()
    from vllm.v1.engine.async_llm import AsyncLLM

    # Of the model's generation config only the end tokens are used: all other sampling settings are in the requests.
    with tempfile.TemporaryDirectory() as folder:
        ends = {"eos_token_id": message_ends(Path(model_dir), tag_tokens)}
        Path(folder, "generation_config.json").write_text(json.dumps(ends))
        given = arguments(config, cpu=cpu, max_tokens=max_tokens, gpus=gpus)
        fixed = {"model": model_dir, "generation_config": folder, "disable_log_stats": not measured}
        return AsyncLLM.from_engine_args(engine_args({**fixed, **given, **config.arguments}, cpu=cpu))


def engine_args(given: JsonView, *, cpu: bool) -> "AsyncEngineArgs":
    """AsyncEngineArgs of what is given, without a cache of prefixes where vLLM would refuse one."""
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig

    chosen = AsyncEngineArgs(weight_transfer_config=WeightTransferConfig(backend=BACKEND), **given)
    if chosen.enable_prefix_caching and not chosen.enable_chunked_prefill and cpu and carries_state(chosen):
        chosen.enable_prefix_caching = False
    return chosen


def carries_state(chosen: "AsyncEngineArgs") -> bool:
    """Whether layers of the model carry a state from token to token: vLLM keeps states for prefixes only where it may
    split a prefill. chosen: AsyncEngineArgs."""
    model = chosen.create_model_config()
    return model.is_hybrid or model.is_attention_free


def preload_openmp() -> None:
    """Sets what `preloaded` gives for this installation, before vLLM sets its own."""
    import torch

    os.environ.update(preloaded(Path(torch.__file__).parent / "lib", os.environ))


def on_cpu() -> bool:
    """Whether vLLM is built for CPUs."""
    from vllm.platforms import current_platform

    return current_platform.is_cpu()


def _set(variables: Mapping[str, str]) -> None:
    for name, value in variables.items():
        if name == "OMP_NUM_THREADS":  # Ray sets it for every actor
            os.environ[name] = value
        else:
            os.environ.setdefault(name, value)


def own_place() -> Path:
    """A new folder for the sockets of this process's engine; its semaphores are named after it. First removes what
    engines left that are gone."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    while (folder := _locked(parent / f"{FOLDER_PREFIX}{secrets.token_hex(4)}")) is None:
        pass
    process: Any = multiprocessing.current_process()
    process._config["semprefix"] = f"/{folder.name}"  # as Python's own name for it, which processes hand on
    return folder


def _locked(folder: Path) -> Path | None:
    """The folder, made and locked: a free lock means that the owner is gone. None if another engine's sweep took it for
    one that was left, before it was locked."""
    folder.mkdir(mode=0o700)
    try:
        lock = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:
        return None
    fcntl.flock(lock, fcntl.LOCK_EX)
    if not folder.exists():
        os.close(lock)
        return None
    _locks.append(lock)
    return folder


def sweep(parent: Path) -> None:
    """Removes the folders and semaphores of engines that are gone."""
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        with suppress(OSError):  # another user's, one in use, or removed meanwhile
            lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                for semaphore in SHARED_MEMORY.glob(f"sem.{folder.name}-*"):
                    semaphore.unlink(missing_ok=True)
                shutil.rmtree(folder)
            finally:
                os.close(lock)
