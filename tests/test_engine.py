"""A rollout engine, real vLLM inside: seeds, weights, versions, and the check that follows each sync."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.engine import EngineConfig, Probe, RolloutEngine, SamplingConfig
from actors.policy import ModelConfig, PackedPolicy, load_model, to_tensors
from coa.errors import InfrastructureError, SyncError, ToolDown
from coa.packing import micro_batch
from coa.rewards import RewardConfig
from coa.rollout import FailedGroup, GroupRecord
from coa.staleness import Ticket
from coa.tools.base import ToolCall
from coa.types import Floats, Sample, Scored
from coa.weights import serialise
from tests.tiny import AGENT, make_model, sum_task


async def tools(calls: Sequence[ToolCall]) -> list[str | InfrastructureError]:
    return ["42"] * len(calls)


class Bench:
    """An engine, the event loop that it lives in, and the policy as the learner has it."""

    def __init__(self, folder: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self.policy = PackedPolicy(load_model(folder, ModelConfig()))
        self.engine: Any = self.run(self._start(folder))
        self.version = 0

    async def _start(self, folder: Path) -> RolloutEngine:
        engine = RolloutEngine(
            str(folder),
            config=EngineConfig(max_concurrent=64),
            agent=AGENT,
            reward=RewardConfig(overlong_buffer=1.0),
            call_many=tools,
            seed=7,
        )
        await engine.ready(0)
        return engine

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def play(self, group: int, *, task: int = 0) -> Any:
        return self.engine.play(sum_task(task), Ticket(group, self.version), 4, SamplingConfig())

    def nudge(self) -> None:
        """A learner step of some size."""
        generator = torch.Generator().manual_seed(self.version)
        with torch.no_grad():
            for parameter in self.policy.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.02)

    def weights(self) -> Any:
        return serialise({name: p.detach() for name, p in self.policy.model.named_parameters()})

    def logprobs(self, sample: Sample) -> Floats:
        with torch.no_grad():
            return self.policy(**to_tensors(micro_batch([[sample]]), torch.device("cpu"))).numpy()

    def probe(self, sample: Sample) -> Probe:
        whole = replace(sample, trained=np.ones(len(sample), np.bool_))
        return Probe(token_ids=sample.token_ids, logprobs=self.logprobs(whole))

    def sync(self, probes: Sequence[Probe]) -> Any:
        self.version += 1
        return self.engine.sync(self.version, self.weights(), probes)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Any:
    torch.set_num_threads(1)
    bench = Bench(make_model(tmp_path_factory.mktemp("model")))
    yield bench
    bench.engine.shutdown()
    bench.loop.close()


def samples_of(played: Any) -> tuple[Sample, ...]:
    record, samples = played
    assert isinstance(record, GroupRecord)
    return samples


def same(ours: Sequence[Sample], others: Sequence[Sample]) -> bool:
    return all(
        np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.sampled_logprobs, b.sampled_logprobs)
        for a, b in zip(ours, others, strict=True)
    )


def test_a_seeded_group_is_the_same_alone_and_among_many(bench: Bench) -> None:
    alone = samples_of(bench.run(bench.play(3, task=3)))

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(bench.play(group, task=group) for group in range(16)))

    among = [samples_of(played) for played in bench.run(crowd())]
    assert same(alone, among[3])
    assert not same(alone, among[4])


def test_recorded_logprobs_are_the_learners(bench: Bench) -> None:
    for sample in samples_of(bench.run(bench.play(20))):
        difference = np.abs(bench.logprobs(sample) - sample.sampled_logprobs[sample.trained])
        assert difference.max() < 1e-4
        assert (sample.versions[sample.trained] == bench.version).all()


def test_after_a_sync_the_engine_has_the_learners_weights(bench: Bench) -> None:
    before = samples_of(bench.run(bench.play(30)))
    bench.nudge()
    report = bench.run(bench.sync([bench.probe(before[0])]))
    assert report.version == bench.version == bench.run(bench.engine.version())
    assert report.logprob_diff < 1e-4
    after = samples_of(bench.run(bench.play(30)))
    assert not same(before, after)
    assert np.abs(bench.logprobs(after[0]) - after[0].sampled_logprobs[after[0].trained]).max() < 1e-4


def test_a_skipped_sync_is_noticed(bench: Bench) -> None:
    [sample, *_] = samples_of(bench.run(bench.play(40)))
    bench.nudge()
    probe = bench.probe(sample)

    async def label_only() -> None:
        """The version moves, the weights don't."""
        await bench.engine._llm.update_weight_version(str(bench.version + 1))

    bench.run(label_only())
    with pytest.raises(SyncError, match="log-probs differ"):
        bench.run(bench.engine.check(bench.version + 1, [probe]))
    bench.run(bench.sync([probe]))


def test_an_engine_at_another_version_is_noticed(bench: Bench) -> None:
    with pytest.raises(SyncError, match=f"runs version {bench.version}, not {bench.version + 5}"):
        bench.run(bench.engine.check(bench.version + 5, []))


def test_episodes_in_flight_go_on_under_new_weights_with_exact_logprobs(bench: Bench) -> None:
    async def update_in_flight() -> list[Any]:
        playing = [asyncio.ensure_future(bench.play(100 + group, task=group)) for group in range(48)]
        await first_tokens(bench)
        bench.nudge()
        await bench.sync([])
        return await asyncio.gather(*playing)

    played = [sample for group in bench.run(update_in_flight()) for sample in samples_of(group)]
    versions = {int(v) for sample in played for v in sample.versions[sample.trained]}
    assert versions == {bench.version - 1, bench.version}
    for sample in played:
        newest = sample.trained & (sample.versions == bench.version)
        if newest.any():
            exact = bench.logprobs(replace(sample, trained=newest))
            assert np.abs(exact - sample.sampled_logprobs[newest]).max() < 1e-4


async def first_tokens(bench: Bench) -> None:
    """Returns once a short request has been answered: the others are under way then."""
    await bench.engine.logprobs(np.array([1, 2, 3], np.int32))


def test_infrastructure_that_fails_makes_no_sample(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*_: object, **__: object) -> list[Scored]:
        raise ToolDown("the sandbox is missing")

    monkeypatch.setattr("actors.engine.play", fails)
    assert bench.run(bench.play(200)) == (FailedGroup(group=200, where="ToolDown", why="the sandbox is missing"), ())
