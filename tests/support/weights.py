"""Ranks and engines in plain processes, for tests of publishing."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.weights.holder import Ranges
from actors.weights.store import Address, Kept
from coa.errors import SyncError
from tests.support.patience import PATIENCE_S


class LocalActor:
    """A plain object with the face of an actor's handle: calls run in this event loop."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return Remote(getattr(self._inner, name))


class Remote:
    def __init__(self, method: Any) -> None:
        self._method = method

    def remote(self, *args: Any) -> "asyncio.Future[Any]":
        return asyncio.ensure_future(self._method(*args))


class Lost(Exception):
    """Of a call to a process that is no more."""


class Mortal(LocalActor):
    """A handle whose process may end."""

    def __init__(self, inner: Any) -> None:
        super().__init__(inner)
        self.dead = False

    def __getattr__(self, name: str) -> Any:
        if not self.__dict__["dead"]:
            return super().__getattr__(name)

        async def fails(*_: Any) -> None:
            raise Lost

        return SimpleNamespace(remote=fails)


class FolderWeightStore:
    """A store of folders, one for each node; holders of other nodes are merged by copying at once."""

    def __init__(self, root: str, members: dict[str, int] | None = None) -> None:
        self.root, self.expected = root, members or {}

    def folder(self, node: str) -> str:
        path = Path(self.root, node)
        path.mkdir(parents=True, exist_ok=True)
        return str(path)

    def check(self, node: str, folder: str) -> None:
        """It is always there."""

    def merge(self, name: str, first: str, size: int, parts: Sequence[tuple[str, Ranges]]) -> None:
        from actors.weights.holder import read_ranges, segment_path, write_ranges

        for node, ranges in parts:
            data, expected = read_ranges(segment_path(self.folder(node), name), ranges)
            write_ranges(segment_path(self.folder(first), name), size, ranges, data, expected)

    def keep(self, kept: Kept) -> None:
        Path(self.root, f"{kept.name}.kept").write_text(kept.path)

    def members(self) -> dict[str, int]:
        return self.expected

    def absent(self, engines: Sequence[str]) -> None:
        Path(self.root, "absent").write_text(json.dumps(list(engines)))

    async def path(self, name: str, address: Address, size: int = 0) -> str:
        await self.join(address)
        kept = Path(self.root, f"{name}.kept")
        if not kept.exists():
            raise SyncError(f"weights {name} are not kept any more")
        return kept.read_text()

    async def join(self, address: Address) -> None:
        self.expected[address.engine] = address.workers

    async def acknowledge(self, name: str, address: Address) -> None:
        Path(self.root, f"{name}.acknowledged").touch()


PREAMBLE = """
import os, sys, json, pathlib
os.environ.update(RANK=sys.argv[1], LOCAL_RANK="0", WORLD_SIZE=sys.argv[2])
import torch
import torch.distributed as dist
torch.set_num_threads(1)
rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world)
"""
END = """
sys.stdout.flush()
os._exit(0)  # threads of process groups may still run, and an interpreter that ends beside them aborts
"""


def run_ranks(script: str, world: int, folder: Path) -> list[dict[str, Any]]:
    """Runs a script on so many ranks, each with `rank`, `world`, `folder` and a gloo group; what each writes into
    `folder/RANK.json`."""
    (folder / "store").unlink(missing_ok=True)
    processes = [
        subprocess.Popen([sys.executable, "-c", PREAMBLE + script + END, str(rank), str(world), str(folder)])
        for rank in range(world)
    ]
    try:
        codes = [process.wait(2 * PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert codes == [0] * world
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]


def start_llm(model: Path) -> Any:
    """A real vLLM engine on CPU, set up as far as weights need it."""
    with pytest.MonkeyPatch.context() as environment:
        for name, value in (("VLLM_CPU_OMP_THREADS_BIND", "nobind"), ("OMP_NUM_THREADS", "1")):
            environment.setenv(name, value)
        environment.setenv("TORCHDYNAMO_DISABLE", "1")
        return _start_llm(model)


def _start_llm(model: Path) -> Any:
    from vllm import AsyncEngineArgs
    from vllm.config import WeightTransferConfig
    from vllm.v1.engine.async_llm import AsyncLLM

    from actors.rollout.device import IN_CORE, preload_openmp
    from actors.weights.host import BACKEND, WORKER

    preload_openmp()
    return AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            model=str(model),
            dtype="float32",
            max_model_len=128,
            max_num_seqs=8,
            enable_chunked_prefill=False,
            max_num_batched_tokens=1024,
            enforce_eager=True,
            disable_log_stats=True,
            kv_cache_memory_bytes=2**28,
            distributed_executor_backend=IN_CORE,
            weight_transfer_config=WeightTransferConfig(backend=BACKEND),
            worker_extension_cls=WORKER,
        )
    )


async def prompt_logprobs(llm: Any, token_ids: Any) -> Any:
    """Of all tokens but the first, without a cache."""
    import uuid

    import numpy as np
    from vllm import SamplingParams

    ids, name = token_ids.tolist(), uuid.uuid4().hex
    params = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0, detokenize=False)
    final: Any = None
    async for output in llm.generate({"prompt_token_ids": ids, "cache_salt": name}, params, name):
        final = output
    found = [entry[token].logprob for token, entry in zip(ids[1:], final.prompt_logprobs[1:], strict=True)]
    return np.asarray(found, np.float32)
