"""(b) A learner of one rank: adapters at ZeRO stage 1, and the whole model at stage 3. Seconds and tokens of a step,
its share of what a large product of matrices does (MFU), peak memory beside the plan's estimate, what a restored
snapshot gives, publication by `ipc` and by `host`, and what is freed at rest."""

import gc
import os
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from actors.learner.config import LearnerConfig, LoraConfig, ModelConfig, Objective
from actors.learner.sizes import architecture
from actors.weights.segment import SHARED_MEMORY
from benchmarks.gpu.models import Size, make_folder, samples_of, timed
from coa.learning.packing import PackingConfig
from coa.learning.schedule import OptimizerConfig
from coa.planning.memory import GIB, rank_memory

STEPS = 3
WHOLE_GIB = 70
"""Memory of a GPU from which on the whole model is trained."""
KINDS: dict[str, dict[str, Any]] = {
    "adapters": {"zero_stage": 1, "lora": LoraConfig(rank=32, alpha=64.0)},
    "whole": {"zero_stage": 3},
}
PASSES = {"adapters": 4, "whole": 6}
"""Operations a parameter and token: frozen matrices need no gradient of their own."""
WAYS = ("ipc", "host")


def measure(size: Size, folder: Path, kind: str) -> dict[str, float]:
    import torch.distributed as dist

    cuda = size.device.type == "cuda"
    os.environ["LOCAL_RANK"] = "0"
    store = f"file://{tempfile.mkdtemp()}/store"
    dist.init_process_group("nccl" if cuda else "gloo", init_method=store, rank=0, world_size=1)
    if kind == "whole" and cuda and torch.cuda.get_device_properties(0).total_memory < WHOLE_GIB * GIB:
        return {}
    from actors.learner.learner import Learner

    model = make_folder(size, folder / "model")
    config = LearnerConfig(
        **KINDS[kind],
        gradient_checkpointing=True,
        packing=PackingConfig(row_tokens=size.row_tokens),
        optimizer=OptimizerConfig(lr=1e-4),
        threads=0,
    )
    if cuda:  # the random model was made there
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    learner = Learner(model, ModelConfig(dtype="bfloat16"), config, steps=100, objective=Objective("imitation"))
    batches = [samples_of(size, size.samples, seed) for seed in range(1 + STEPS)]
    learner.step(batches[0], 0)
    seconds = timed(size.device, lambda: [learner.step(batch, 1) for batch in batches[1:]]) / STEPS
    tokens = sum(len(sample) for batch in batches[1:] for sample in batch) / STEPS
    figures = {
        "step_s": seconds,
        "tokens_s": tokens / seconds,
        "mfu": _flops(size, tokens, PASSES[kind]) / seconds / _peak(size),
    }
    if cuda:
        built = architecture(ModelConfig(path=str(model)))
        assert built is not None
        figures["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
        figures["planned_gib"] = rank_memory(built, config, "bfloat16").on_device / GIB
    figures |= _restored(learner, batches[0], folder) | _published(learner, folder)
    if cuda:
        before = torch.cuda.memory_reserved()
        learner.rest()
        figures["rest_frees_gib"] = (before - torch.cuda.memory_reserved()) / GIB
    return figures


def _restored(learner: Any, batch: Any, folder: Path) -> dict[str, float]:
    """Seconds of a snapshot, and whether the step after it is the same once it is restored."""
    from pyarrow.fs import LocalFileSystem

    began = time.perf_counter()
    state = learner.snapshot()
    seconds = time.perf_counter() - began
    with tempfile.TemporaryDirectory(dir=folder) as place:
        state.write(LocalFileSystem(), place)
        first = learner.step(batch, 2)
        learner.restore(Path(place))
        again = learner.step(batch, 2)
    return {"snapshot_s": seconds, "restored_equal": float(first.loss == again.loss)}


def _published(learner: Any, folder: Path) -> dict[str, float]:
    """GB a second of both ways, to a worker in a process of its own."""
    from tests.support.offers import sender_of, store_in, take_elsewhere

    figures: dict[str, float] = {}
    for version, way in enumerate(WAYS, start=1):
        roomy = shutil.disk_usage(SHARED_MEMORY).free > 2 * learner.parts().layout.nbytes
        place = Path(tempfile.mkdtemp(dir=SHARED_MEMORY if roomy else folder))
        sender, began = sender_of(store_in(place), way), time.perf_counter()
        published = sender.send(learner.parts(), version, f"{version}-0")
        gigabytes = published.manifest.layout.nbytes / 1e9
        figures[f"publish_{way}_gb_s"] = gigabytes / (time.perf_counter() - began)
        figures[f"take_{way}_gb_s"] = gigabytes / take_elsewhere(published, place)["seconds"]
        sender.withdraw()
        shutil.rmtree(place)
    return figures


def _flops(size: Size, tokens: float, passes: int) -> float:
    """Operations of a forward and a backward pass, without what checkpointing computes again, and without attention."""
    sizes = size.sizes
    width = sizes["num_attention_heads"] * sizes["head_dim"]
    key_values = sizes["num_key_value_heads"] * sizes["head_dim"]
    layer = sizes["hidden_size"] * (2 * width + 2 * key_values + 3 * sizes["intermediate_size"])
    return passes * tokens * (sizes["num_hidden_layers"] * layer + sizes["vocab_size"] * sizes["hidden_size"] / 2)


def _peak(size: Size) -> float:
    """Operations a second of a large product of matrices in bfloat16."""
    side, repeats = (8192, 10) if size.device.type == "cuda" else (512, 2)
    a = torch.randn(side, side, device=size.device, dtype=torch.bfloat16)
    timed(size.device, lambda: a @ a)
    return repeats * 2 * side**3 / timed(size.device, lambda: [a @ a for _ in range(repeats)])
