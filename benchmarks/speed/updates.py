"""Whole updates of vLLM engines, from a rank's parameters to engines that serve them, beside vLLM's own reload.

The rank is this process. Engines have no requests. Reload and update are timed in turns, and both leave the same
weights: the reload reads them as a model's folder in shared memory, the update moves them by a transport of
`rl.weights.transport`, with digests on both sides and every check of `WeightLoader`.
"""

import asyncio
import itertools
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from actors.weights.holder import leave_spare, segment_path
from actors.weights.loader import WeightLoader
from benchmarks.harness import median_ratio

REQUESTS = 8
SIZES: Mapping[int, tuple[int, int]] = {50: (192, 4), 150: (384, 8), 500: (768, 12)}
"""Hidden size and layers of models of about so many MB of float32."""
ENGINES = (1, 2, 4)
OF_ENGINES = 150
"""Size of the model with which the number of engines is varied."""
PAUSE_S = 0.05
"""That a pause may take beside the reload in it."""
TRANSPORTS = ("host", "ipc")
Seconds = dict[str, list[float]]


def make_model(folder: Path, size: int = 500) -> Path:
    """Of 500 MB: 134M parameters, 536 MB of float32."""
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    hidden, layers = SIZES[size]
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=32_000,
        hidden_size=hidden,
        intermediate_size=hidden * 8 // 3,
        num_hidden_layers=layers,
        num_attention_heads=12,
        num_key_value_heads=4,
        head_dim=64,
        tie_word_embeddings=False,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)
    return folder


def start_llm(model: Path) -> Any:
    os.environ.update(VLLM_CPU_KVCACHE_SPACE="1", VLLM_CPU_OMP_THREADS_BIND="nobind", OMP_NUM_THREADS="1")
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    from actors.weights.host import BACKEND, WORKER

    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model),
            dtype="float32",
            skip_tokenizer_init=True,
            max_model_len=1024,
            max_num_seqs=REQUESTS,
            enforce_eager=True,
            enable_chunked_prefill=False,
            max_num_batched_tokens=8192,
            disable_log_stats=True,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=WORKER,
        )
    )


class Rank:
    """A learner's only rank, with the parameters of a model in a folder."""

    def __init__(self, model: Path, shared: Path, bucket_bytes: int) -> None:
        """shared: a folder in shared memory."""
        from transformers import AutoModelForCausalLM

        from tests.support.offers import parts_of, sender_of, store_in

        parameters = AutoModelForCausalLM.from_pretrained(model).named_parameters()
        self._parts = parts_of(((name, one.detach()) for name, one in parameters), bucket_bytes)
        # A folder for each, since a rank waits for all engines that have taken its weights by ipc before.
        self._folders = {name: shared / name for name in TRANSPORTS}
        self._senders = {name: sender_of(store_in(folder), name) for name, folder in self._folders.items()}
        self._versions = itertools.count(1)

    @property
    def nbytes(self) -> int:
        return self._parts.layout.nbytes

    async def update(self, transport: str, loaders: Sequence[WeightLoader]) -> tuple[float, float]:
        """Seconds until all engines serve a version, and the longest pause of one of them."""
        version, sender = next(self._versions), self._senders[transport]
        name = f"{version}-0"
        began = time.perf_counter()
        published = sender.send(self._parts, version, name)
        pauses = await asyncio.gather(*(loader.load(version, published) for loader in loaders))
        took = time.perf_counter() - began
        sender.withdraw()
        folder = self._folders[transport]
        leave_spare(segment_path(str(folder), name))
        for path in folder.glob(f"{name}*"):
            path.unlink()
        return took, max(pauses)


async def reload(llm: Any, model: Path) -> float:
    began = time.perf_counter()
    await llm.collective_rpc("reload_weights", kwargs={"weights_path": str(model)})
    return time.perf_counter() - began


async def time_updates(model: Path, shared: Path, bucket_bytes: int, engines: int, rounds: int) -> Seconds:
    """Of `reload`, and of each transport with one engine and its pause ("host", "host/pause"); by host also with every
    number of ENGINES up to `engines` ("host/2")."""
    kept = Path(shutil.copytree(model, shared / "model"))
    rank = Rank(model, shared, bucket_bytes)
    found: Seconds = {"mb": [rank.nbytes / 1e6]}
    with ExitStack() as stack:
        llms = []
        for _ in range(engines):
            llms.append(llm := start_llm(kept))
            stack.callback(llm.shutdown)
        loaders = [WeightLoader(llm, clear_cache=True) for llm in llms]
        for turn in range(rounds + 1):
            times = {"reload": await reload(llms[0], kept)}
            for transport in TRANSPORTS:
                times[transport], times[f"{transport}/pause"] = await rank.update(transport, loaders[:1])
            for count in ENGINES[1:]:
                if count <= engines:
                    times[f"host/{count}"], _ = await rank.update("host", loaders[:count])
            if turn:  # the first round is slower on all sides
                for name, seconds in times.items():
                    found.setdefault(name, []).append(seconds)
    shutil.rmtree(kept)
    return found


def figures_of(found: Mapping[int, Seconds]) -> dict[str, float]:
    """found: what was timed, by size; the ratios are those of the largest."""
    figures: dict[str, float] = {}
    for size, times in found.items():
        figures |= {f"{size}/{name}": median(seconds) for name, seconds in times.items()}
    largest = found[max(found)]
    return {
        **figures,
        "update_to_reload": median_ratio(largest["host"], largest["reload"]),
        "pause_to_reload": median_ratio([pause - PAUSE_S for pause in largest["host/pause"]], largest["reload"]),
        "ipc_to_host": median_ratio(largest["ipc"], largest["host"]),
    }


def draw(figures: Mapping[str, float], path: Path) -> None:
    """Seconds of an update against the size of the model, and against the number of engines."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.2), layout="constrained")
    sizes, engines = figure.subplots(1, 2)
    labels = {
        "reload": "vLLM's reload",
        "host": "update, host",
        "ipc": "update, ipc",
        "host/pause": "pause of the update",
    }
    for name, label in labels.items():
        line = sorted((figures[f"{size}/mb"], figures[f"{size}/{name}"]) for size in SIZES)
        sizes.plot(*zip(*line, strict=True), marker="o", label=label)
    sizes.set(xlabel="MB", ylabel="seconds", xlim=0, ylim=0)
    sizes.legend(frameon=False)
    names = {count: f"{OF_ENGINES}/host" + f"/{count}" * (count > 1) for count in ENGINES}
    engines.plot(list(names), [figures[name] for name in names.values()], marker="o")
    engines.set(xlabel=f"engines, {figures[f'{OF_ENGINES}/mb']:.0f} MB", xticks=ENGINES, xlim=0, ylim=0)
    for axes in (sizes, engines):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=110)
