"""Syncs of 500 MB: how fast they are against memcpy and vLLM's own reload, and what an engine notices of them.

    python -m benchmarks.weights [--smoke]

The transport `host` is timed from the rank's parameters to bytes that the receiver has checked: write, digests, map,
digests. The transfer is host without digests: the file is written, mapped, and a byte of each of its pages read. As in
a run, a version is written over the file of one that nobody reads any more. Whole updates of real engines, with models
of 50, 150 and 500 MB and one, two and four engines, are `benchmarks.speed.updates`. The heartbeat is a task of the
process around vLLM that wants to run every 5 ms while requests are generated: how late it is, with syncs one after the
other and without, in turns. The pause of generation is what `WeightLoader.load` reports.
"""

import argparse
import asyncio
import itertools
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from actors.learner.lora import Source
from actors.weights.holder import leave_spare, reuse_spare
from actors.weights.loader import WeightLoader
from actors.weights.on_disk import mapped, published_file
from actors.weights.parts import ModelParts
from actors.weights.ranks import Ranks
from actors.weights.segment import SHARED_MEMORY, SegmentFolder
from actors.weights.transport import BUCKET_BYTES, Published
from benchmarks.harness import ROOT, median_ratio, report, seconds
from benchmarks.speed.updates import (
    ENGINES,
    OF_ENGINES,
    REQUESTS,
    SIZES,
    Seconds,
    draw,
    figures_of,
    make_model,
    start_llm,
    time_updates,
)

LAYERS, WIDTH = 30, 2048
"""Of the parameters that are published: 503 MB of float32."""
ROUNDS = 5
PHASES, PHASE_S, BEAT_S = 3, 12.0, 0.005
PAGE = 4096
PLOT = ROOT / "docs" / "weights.png"
TARGETS = {
    "transfer_share": ">= 0.35",
    "update_to_reload": "<= 1.7",
    "pause_to_reload": "<= 1.2",
    "heartbeat_added_ms": "<= 20",
}


# --- the host ---------------------------------------------------------------------------------------------------------


def time_host(folder: Path, layers: int) -> dict[str, float]:
    """GB/s of memcpy, the transfer and host, and the transfer as a share of memcpy."""
    store = folder / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    sources = [Source(f"t{i}", (torch.nn.Parameter(torch.randn(WIDTH, WIDTH)),)) for i in range(layers)]
    parts = ModelParts(sources, sharded=False, bucket_bytes=BUCKET_BYTES)
    size, ranks = parts.layout.nbytes, Ranks("node")
    source, target = np.ones(size, np.uint8), np.ones(size, np.uint8)
    found: dict[str, list[float]] = {"memcpy": [], "transfer": [], "host": [], "host_receive": []}
    for turn in range(ROUNDS):
        found["memcpy"].append(seconds(lambda: np.copyto(target, source)))
        path = folder / f"{turn}.safetensors"
        reuse_spare(path)
        began = time.perf_counter()
        ranks.write(path, parts)
        written = time.perf_counter()
        with mapped(path, len(parts.layout.header()), size) as data:
            int(data[::PAGE].max())
        touched = time.perf_counter()
        manifest = ranks.seal(path, parts.layout, 1)
        sent = time.perf_counter()
        with mapped(path, len(parts.layout.header()), size) as data:
            manifest.check(data)
        found["host_receive"].append(time.perf_counter() - sent)
        found["transfer"].append(touched - began)
        found["host"].append(time.perf_counter() - began - (touched - written))
        leave_spare(path)
    rates = {f"{name}_gb_s": size / median(times) / 1e9 for name, times in found.items()}
    return {**rates, "transfer_share": median_ratio(found["memcpy"], found["transfer"])}


# --- what an engine notices -------------------------------------------------------------------------------------------


async def beat(late: list[float]) -> None:
    """Notes by how many ms each turn of the event loop came late."""
    due = time.perf_counter()
    while True:
        due = max(due + BEAT_S, time.perf_counter())
        await asyncio.sleep(due - time.perf_counter())
        late.append(1000 * (time.perf_counter() - due))


@asynccontextmanager
async def generating(llm: Any) -> AsyncIterator[None]:
    """Requests, each followed by another."""
    from vllm import SamplingParams

    async def ask() -> None:
        params = SamplingParams(temperature=1.0, max_tokens=200, ignore_eos=True, detokenize=False)
        while True:
            prompt = {"prompt_token_ids": list(range(100, 140)), "cache_salt": uuid.uuid4().hex}
            async for _ in llm.generate(prompt, params, uuid.uuid4().hex):
                pass

    asking = [asyncio.ensure_future(ask()) for _ in range(REQUESTS)]
    try:
        yield
    finally:
        for task in asking:
            task.cancel()
        await asyncio.gather(*asking, return_exceptions=True)


async def watch_engine(model: Path, versions: list[Published], phase_s: float) -> dict[str, float]:
    llm = start_llm(model)
    loader = WeightLoader(llm, clear_cache=True)
    late: dict[bool, list[float]] = {False: [], True: []}
    pauses: list[float] = []
    syncs: list[float] = []
    try:
        async with generating(llm):
            await asyncio.sleep(3)
            for syncing in (False, True) * PHASES:
                beating = asyncio.ensure_future(beat(late[syncing]))
                ends = time.perf_counter() + phase_s
                for published in itertools.cycle(versions):
                    if not syncing or time.perf_counter() > ends:
                        break
                    began = time.perf_counter()
                    pauses.append(await loader.load(published.manifest.version, published))
                    syncs.append(time.perf_counter() - began)
                await asyncio.sleep(max(0.0, ends - time.perf_counter()))
                beating.cancel()
    finally:
        llm.shutdown()
    without, under = (float(np.quantile(late[syncing], 0.999)) for syncing in (False, True))
    return {
        "heartbeat_p999_ms": without,
        "heartbeat_p999_under_syncs_ms": under,
        "heartbeat_added_ms": under - without,
        "syncs": len(syncs),
        "sync_s": median(syncs),
        "pause_s": median(pauses),
    }


def updates(folder: Path, sizes: Sequence[int], engines: int, rounds: int) -> dict[int, Seconds]:
    found: dict[int, Seconds] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory() as disk:
            model, count = make_model(Path(disk, "model"), size), engines if size == OF_ENGINES else 1
            found[size] = asyncio.run(time_updates(model, folder, BUCKET_BYTES, count, rounds))
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--smoke", action="store_true", help="a small model, one engine, few rounds")
    smoke = parser.parse_args().smoke
    layers, sizes, engines, rounds = (4, (50,), 1, 1) if smoke else (LAYERS, tuple(SIZES), max(ENGINES), ROUNDS)
    folder = SegmentFolder(SHARED_MEMORY)
    with tempfile.TemporaryDirectory() as disk:
        try:
            figures = time_host(folder.path, layers)
            figures |= figures_of(updates(folder.path, sizes, engines, rounds))
            model = make_model(Path(disk, "model"), max(sizes))
            first = published_file(1, model)
            copy = folder.path / "2.safetensors"
            copy.write_bytes((model / "model.safetensors").read_bytes())
            second = published_file(2, copy)
            figures |= asyncio.run(watch_engine(model, [second, first], PHASE_S / 6 if smoke else PHASE_S))
        finally:
            folder.close()
    if not smoke:
        draw(figures, PLOT)
    report("weights" + "_smoke" * smoke, figures, TARGETS)


if __name__ == "__main__":
    main()
