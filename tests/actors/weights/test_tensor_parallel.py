"""An engine whose model two processes share takes published weights: each of them all bytes, of which it keeps its
part. Real vLLM, whose workers are two CPU processes here."""

import asyncio
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import Parameter

from actors.learner.lora import Source
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.weights.checks.path_check import difference, probe_tokens
from actors.weights.manifest import serialise
from actors.weights.on_disk import FilePlace
from actors.weights.parts import ModelParts
from actors.weights.ranks import Ranks
from actors.weights.transport import Published
from actors.weights.transports import TRANSPORTS, find_sender
from coa.agent.codec import Stops
from coa.agent.episode import Ask
from coa.errors import DamagedWeights
from coa.extensions import VARIABLE
from coa.types import Floats
from tests.support import damaged_transport
from tests.support.tiny import make_model
from tests.support.weights import FolderWeightStore

pytestmark = pytest.mark.slow
WORKERS = 2
BUCKET_BYTES = 100_000
PROMPTS = [probe_tokens(100, length) for length in (5, 12, 31)]
SAID = 24
GREEDY = SamplingConfig(temperature=0.0)


class Engine:
    """A policy on so many workers, and the event loop that it lives in."""

    def __init__(self, model: Path, workers: int) -> None:
        self.runner = asyncio.Runner()
        self.adapter: PolicyAdapter = self.run(self._start(str(model), workers))
        self.loader = self.adapter._weights

    async def _start(self, model: str, workers: int) -> PolicyAdapter:
        config = EngineConfig(tensor_parallel=workers, max_concurrent=8, kv_cache_gib=0.25)
        adapter = PolicyAdapter(model, config, max_tokens=128, tag_tokens=frozenset())
        await adapter.name_version(0)
        return adapter

    def run(self, work: Any) -> Any:
        return self.runner.get_loop().run_until_complete(work)

    def said(self) -> list[list[int]]:
        """What it generates greedily, all at once."""

        async def one(prompt: Any) -> list[int]:
            ask = Ask(prompt=prompt, turn=0, max_tokens=SAID, constraint=None)
            said = await self.adapter.generate(ask, sampling=GREEDY, stops=Stops((), ()), seed=0, priority=0)
            return said.token_ids.tolist()

        async def all_of_them() -> list[list[int]]:
            return await asyncio.gather(*map(one, PROMPTS))

        return self.run(all_of_them())

    def logprobs(self) -> Floats:
        return self.run(self.adapter.logprobs(PROMPTS[-1]))

    def ask_workers(self, method: str) -> list[Any]:
        return self.run(self.loader._call(method))

    def close(self) -> None:
        self.adapter.shutdown()
        self.runner.close()


class Bench(Engine):
    """An engine of two workers, and the one rank of its learner, whose store is a folder."""

    def __init__(self, first: Path, second: Path, folder: Path) -> None:
        super().__init__(first, WORKERS)
        self.first, self.second = (load_file(model / "model.safetensors") for model in (first, second))
        self.store = FolderWeightStore(str(folder))
        self.version = 0
        self.received: list[list[Any]] = []
        """What each worker said of the bytes that it was to take, for every way that was tried."""
        call = self.loader._call

        async def noted(method: str, *args: Any) -> list[Any]:
            answers = await call(method, *args)
            if method == "coa_received" and None not in answers:
                self.received.append([answer["failure"] for answer in answers])
            return answers

        self.loader._call = noted

    def publish(self, state: Mapping[str, Tensor]) -> Published:
        """The next version, with these weights."""
        self.version += 1
        sources = [Source(name, (Parameter(tensor),)) for name, tensor in state.items()]
        parts = ModelParts(sources, sharded=False, bucket_bytes=BUCKET_BYTES)
        published = find_sender("host")(Ranks("node"), self.store).send(parts, self.version, f"{self.version}-0")
        assert published is not None
        assert published.manifest.layout.buckets > 5
        return published

    def load(self, published: Published) -> None:
        self.received.clear()
        self.run(self.adapter.load(published.manifest.version, published))

    def refused(self, published: Published) -> None:
        """Loading fails for bytes that are not those of the manifest, and the engine goes on as it was."""
        served, before = self.run(self.adapter.version()), self.said()
        damaged = published.manifest.layout.nbytes // 2 // BUCKET_BYTES
        with pytest.raises(DamagedWeights, match=f"version {self.version}: bucket {damaged} of .* was changed"):
            self.load(published)
        assert not self.adapter.paused
        assert (self.run(self.adapter.version()), self.said()) == (served, before)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two, of other weights; their logits are far apart."""
    folder = tmp_path_factory.mktemp("models")
    return [make_model(folder / str(seed), seed=seed, initializer_range=0.2) for seed in (0, 1)]


@pytest.fixture(scope="module")
def fresh(models: list[Path]) -> tuple[list[list[int]], Floats]:
    """What an engine says that was started with the second model, in one process."""
    engine = Engine(models[1], 1)
    found = engine.said(), engine.logprobs()
    engine.close()
    return found


@pytest.fixture(scope="module")
def bench(models: list[Path], one_rank: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv(VARIABLE, damaged_transport.__name__)
        bench = Bench(models[0], models[1], tmp_path_factory.mktemp("store"))
        yield bench
        bench.close()
    for worker in damaged_transport.WORKERS:
        TRANSPORTS._entries.pop(damaged_transport.NAME.format(worker))  # nothing of them is left for other tests


def test_both_workers_take_a_version_and_say_what_a_fresh_engine_says(
    bench: Bench, fresh: tuple[list[list[int]], Floats]
) -> None:
    said, logprobs = fresh
    bench.version += 1
    bench.run(bench.adapter.load(bench.version, serialise(bench.first)))
    assert all(ours != theirs for ours, theirs in zip(bench.said(), said, strict=True))
    bench.run(bench.store.join(bench.loader._address))
    published = bench.publish(bench.second)
    bench.load(published)
    assert bench.received == [[None] * WORKERS], "the first way that was tried"
    loaded = {"version": bench.version, "sync": bench.loader.syncs, "short": []}
    for report in bench.ask_workers("coa_report"):
        assert report.pop("took").keys() == bench.second.keys()
        assert report == loaded
    assert bench.said() == said
    assert difference(bench.logprobs(), logprobs) < 1e-4


def test_a_bucket_that_is_tampered_with_is_found_by_both_workers(bench: Bench) -> None:
    bench.run(bench.store.join(bench.loader._address))
    published = bench.publish(bench.second)
    place = published.place
    with Path(bench.run(bench.store.path(place.name, bench.loader._address))).open("r+b") as file:
        file.seek(place.base + published.manifest.layout.nbytes // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))
    bench.refused(published)
    [failures] = bench.received
    assert [kind for kind, _ in failures] == [DamagedWeights.__name__] * WORKERS


@pytest.mark.parametrize("victim", range(WORKERS))
def test_a_byte_that_changes_on_its_way_to_one_worker_is_found_there(victim: int, bench: Bench) -> None:
    published = bench.publish(bench.second)
    path = bench.run(bench.store.path(published.place.name, bench.loader._address))
    way = damaged_transport.NAME.format(victim)
    broken = replace(published, transport=way, place=FilePlace(path, published.place.base))
    bench.refused(broken)
    [failures] = bench.received
    assert [failure is not None for failure in failures] == [worker == victim for worker in range(WORKERS)]
