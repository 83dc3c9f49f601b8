"""A rollout engine, real vLLM inside: seeds, weights, versions, and the check that follows each sync."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from vllm import SamplingParams

from actors.learner.config import ModelConfig
from actors.learner.model.load import load_model
from actors.learner.policy import PackedPolicy, to_tensors
from actors.messages import (
    Advanced,
    Cancelled,
    EpisodeId,
    EpisodeOrder,
    Event,
    EventBatch,
    EventLevel,
    Probe,
    Streamed,
    TurnOrder,
)
from actors.outbox import pace_of
from actors.rollout.config import EngineConfig, SamplingConfig
from actors.rollout.engine import RolloutEngine
from actors.weights.manifest import serialise
from coa.agent.episode import Grammar
from coa.agent.journal import Journal, Said
from coa.errors import SyncError
from coa.grading.rewards import RewardConfig
from coa.learning.algorithms.grpo import Grpo
from coa.learning.packing import micro_batch
from coa.learning.samples import to_samples
from coa.tools.base import ToolCall
from coa.types import Floats, Sample, Trajectory
from tests.support.driver import Driver
from tests.support.executors import Answering
from tests.support.tiny import AGENT, make_model, sum_task


async def answer(call: ToolCall) -> str:
    return "42"


class Bench:
    """An engine, the event loop that it lives in, and the policy as the learner has it."""

    def __init__(self, folder: Path) -> None:
        self.runner = asyncio.Runner()
        self.policy = PackedPolicy(load_model(folder, ModelConfig()))
        self.engine: Any = self.run(self._start(folder))
        self.driver = Driver(self.engine)
        self.version = 0

    async def _start(self, folder: Path) -> RolloutEngine:
        engine = RolloutEngine(
            str(folder),
            config=EngineConfig(max_concurrent=64),
            agent=AGENT,
            reward=RewardConfig(overlong_buffer=1.0),
            tools=Answering(answer),
            seed=7,
        )
        await engine.ready(0)
        return engine

    def run(self, work: Any) -> Any:
        return self.runner.get_loop().run_until_complete(work)

    async def play(self, group: int, *, task: int = 0) -> tuple[Sample, ...]:
        """What a group of four would be trained on."""
        one = sum_task(task)
        orders = [
            EpisodeOrder(id=EpisodeId(one.id, group, sample), task=one, sampling=SamplingConfig(), agent=AGENT)
            for sample in range(4)
        ]
        return to_samples(await self.driver.play(orders), Grpo(), group)

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
        whole = replace(sample, loss_mask=np.ones(len(sample), np.bool_))
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
    bench.runner.close()


def same(ours: Sequence[Sample], others: Sequence[Sample]) -> bool:
    return all(
        np.array_equal(a.token_ids, b.token_ids) and np.array_equal(a.rollout_logprobs, b.rollout_logprobs)
        for a, b in zip(ours, others, strict=True)
    )


def test_a_seeded_group_is_the_same_alone_and_among_many(bench: Bench) -> None:
    alone = bench.run(bench.play(3, task=3))

    async def crowd() -> list[Any]:
        return await asyncio.gather(*(bench.play(group, task=group) for group in range(16)))

    among = bench.run(crowd())
    assert same(alone, among[3])
    assert not same(alone, among[4])


def test_recorded_logprobs_are_the_learners(bench: Bench) -> None:
    for sample in bench.run(bench.play(20)):
        difference = np.abs(bench.logprobs(sample) - sample.rollout_logprobs[sample.loss_mask])
        assert difference.max() < 1e-4
        assert (sample.versions[sample.loss_mask] == bench.version).all()


def test_after_a_sync_the_engine_has_the_learners_weights(bench: Bench) -> None:
    before = bench.run(bench.play(30))
    bench.nudge()
    report = bench.run(bench.sync([bench.probe(before[0])]))
    assert report.version == bench.version == bench.run(bench.engine.version())
    assert report.logprob_diff < 1e-4
    after = bench.run(bench.play(30))
    assert not same(before, after)
    assert np.abs(bench.logprobs(after[0]) - after[0].rollout_logprobs[after[0].loss_mask]).max() < 1e-4


def test_log_probs_that_drift_from_the_learners_are_an_alarm(bench: Bench) -> None:
    [sample, *_] = bench.run(bench.play(40))
    bench.run(bench.sync([bench.probe(sample)]))
    bench.nudge()
    probe = bench.probe(sample)

    async def label_only() -> None:
        """The version moves, the weights don't."""
        await bench.engine.policy._llm.update_weight_version(str(bench.version + 1))

    bench.run(label_only())
    report = bench.run(bench.engine.check(bench.version + 1, [probe]))
    assert report.alarm
    assert report.unmoved
    assert report.logprob_diff > 1e-3
    assert 1e-5 < report.logprob_mean_diff < report.logprob_diff
    assert not bench.run(bench.sync([probe])).alarm
    bench.nudge()
    assert not bench.run(bench.sync([bench.probe(sample)])).alarm, "both have moved"


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

    played = [sample for group in bench.run(update_in_flight()) for sample in group]
    versions = {int(v) for sample in played for v in sample.versions[sample.loss_mask]}
    assert versions == {bench.version - 1, bench.version}
    for sample in played:
        newest = sample.loss_mask & (sample.versions == bench.version)
        if newest.any():
            exact = bench.logprobs(replace(sample, loss_mask=newest))
            assert np.abs(exact - sample.rollout_logprobs[newest]).max() < 1e-4


async def first_tokens(bench: Bench) -> None:
    """Returns once a short request has been answered: the others are under way then."""
    await bench.engine.logprobs(np.array([1, 2, 3], np.int32))


def test_a_turn_of_a_program_has_the_learners_log_probs(bench: Bench) -> None:
    prompt = np.array([9, 8, 7, 6], np.int32)

    async def ask(call: int, **how: Any) -> Said:
        sampling = SamplingParams(**{"max_tokens": 12, "temperature": 1.0, **how})
        order = TurnOrder(id=EpisodeId("t", 0, 0, call=call), prompt=prompt, sampling=sampling, draw=5)
        [said] = await bench.driver.play([order])
        assert isinstance(said, Said)
        return said

    first, again = bench.run(ask(1)), bench.run(ask(2))
    assert first.token_ids.tolist() == again.token_ids.tolist(), "the seed is that of what it draws"
    length = len(first.token_ids)
    whole = np.concatenate([prompt, first.token_ids])
    [sample] = [
        Sample(
            token_ids=whole,
            loss_mask=np.arange(len(whole)) >= len(prompt),
            imitate=np.zeros(len(whole), np.float32),
            reinforce=np.zeros(len(whole), np.float32),
            rollout_logprobs=np.zeros(len(whole), np.float32),
            versions=np.zeros(len(whole), np.int32),
        )
    ]
    assert np.abs(bench.logprobs(sample) - first.logprobs).max() < 1e-4
    assert first.versions == ((bench.version, length),)
    stopped = bench.run(ask(3, stop_token_ids=[int(first.token_ids[2])]))
    assert (stopped.token_ids.tolist(), stopped.ended) == (first.token_ids[:3].tolist(), True)
    biased = bench.run(ask(4, logit_bias={11: 100.0}, max_tokens=3))
    assert (biased.token_ids.tolist(), biased.ended) == ([11] * 3, False)


# --- orders and events ------------------------------------------------------------------------------------------------

TALKATIVE = replace(
    AGENT, grammar=Grammar.enforce, limits=replace(AGENT.limits, max_turns=4, max_turn_tokens=64, max_tag_tokens=6)
)
"""Takes several turns and calls tools, though it was never trained."""


def order(group: int, sample: int = 0, **named: Any) -> EpisodeOrder:
    task = sum_task(group)
    settings: dict[str, Any] = {"sampling": SamplingConfig(), "agent": TALKATIVE, **named}
    return EpisodeOrder(id=EpisodeId(task.id, group, sample), task=task, **settings)


async def finish(bench: Bench, *orders: EpisodeOrder) -> tuple[Sequence[Event], list[Trajectory]]:
    """The events of orders, and what they came to."""
    before = len(bench.driver.events)
    made = await bench.driver.play(orders)
    return bench.driver.events[before:], [scored.trajectory for scored in made]


async def read_until(bench: Bench, end: int) -> None:
    """Read the events up to ``end``, so that no later test reads them as its own."""
    while len(bench.driver.events) < end:
        await bench.driver.read()


def journal_of(events: Sequence[Event]) -> Journal:
    return tuple(event.delta for event in events if isinstance(event, Advanced))


def alike(one: Trajectory, other: Trajectory) -> bool:
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("token_ids", "action_mask", "logprobs", "versions")
    )


def test_an_episode_that_is_resumed_from_any_event_ends_as_it_did(bench: Bench) -> None:
    # What an untrained policy says depends on its weights: the first of some episodes that calls a tool.
    plays: Any = ((group, *bench.run(finish(bench, order(group)))) for group in range(410, 420))
    group, events, [whole] = next(play for play in plays if play[2][0].turns > 1)
    journal = journal_of(events)
    for kept in range(len(journal) + 1):
        _, [resumed] = bench.run(finish(bench, order(group, journal=journal[:kept])))
        assert alike(resumed, whole)


def test_streaming_changes_no_token_and_adds_up_to_the_turns(bench: Bench) -> None:
    _, [quiet] = bench.run(finish(bench, order(420)))
    events, [streamed] = bench.run(finish(bench, order(420, level=EventLevel.TOKENS)))
    assert alike(streamed, quiet)
    pieces = [event.token_ids for event in events if isinstance(event, Streamed)]
    assert len(pieces) > 2 * streamed.turns
    assert np.concatenate(pieces).tolist() == streamed.token_ids[streamed.action_mask].tolist()


LONG = replace(AGENT, grammar=Grammar.enforce, limits=replace(AGENT.limits, max_turn_tokens=150, max_tag_tokens=140))


@pytest.mark.parametrize(("level", "told"), [(EventLevel.TURNS, False), (EventLevel.UNFINISHED, True)])
def test_a_turn_that_is_cut_off_tells_the_tokens_that_it_had(bench: Bench, level: EventLevel, told: bool) -> None:
    async def go() -> None:
        await first_tokens(bench)  # vLLM samples no more for what an earlier test cancelled
        before, tokens = len(bench.driver.events), bench.engine.policy.tokens
        cut = order(425, int(told), agent=LONG, level=level)
        await bench.engine.start([cut])
        while (sampled := bench.engine.policy.tokens - tokens) < 5:
            await bench.driver.read(wait_s=0.01)
        await read_until(bench, await bench.engine.cancel([cut.id]))
        *events, end = bench.driver.events[before:]
        assert isinstance(end, Cancelled)
        heard = sum(len(event.token_ids) for event in events if isinstance(event, Streamed))
        assert (len(events) == 1 and sampled <= heard <= bench.engine.policy.tokens - tokens) if told else not events

    bench.run(go())


def test_progress_shows_while_a_turn_is_sampled_and_a_heartbeat_comes_without_events(bench: Bench) -> None:
    async def go() -> list[EventBatch]:
        batches: list[EventBatch] = []
        orders = [order(430 + n, agent=LONG) for n in range(8)]
        await bench.engine.start(orders)
        while not (batches and batches[-1].events):
            batches.append(await bench.driver.read(wait_s=0.01))
        await read_until(bench, await bench.engine.cancel([each.id for each in orders]))
        return batches

    batches = bench.run(go())
    quiet = [batch for batch in batches if not batch.events]
    assert len({batch.tokens for batch in quiet}) > 2
    assert {batch.generating for batch in quiet[1:]} == {8}
    assert not any(batch.paused for batch in batches)


def test_events_are_paced_by_the_episodes_under_way(bench: Bench) -> None:
    async def go() -> list[float]:
        orders = [order(440 + n, agent=LONG) for n in range(8)]
        await bench.engine.start(orders)
        paces = [bench.engine._outbox._pace()]
        await read_until(bench, await bench.engine.cancel([each.id for each in orders]))
        return [*paces, bench.engine._outbox._pace()]

    assert bench.run(go()) == [pace_of(8), 0.0]


def test_a_cancelled_episode_leaves_nothing_behind_in_vllm(bench: Bench) -> None:
    async def go() -> None:
        before = len(bench.driver.events)
        orders = [order(450 + n) for n in range(16)]
        await bench.engine.start(orders)
        await first_tokens(bench)
        assert bench.engine.policy._llm.get_num_unfinished_requests() > 0
        ids = [each.id for each in orders]
        end = await bench.engine.cancel(ids)
        assert bench.engine.policy._llm.get_num_unfinished_requests() == 0 == bench.engine.policy.generating
        await read_until(bench, end)
        cancelled = [event.id for event in bench.driver.events[before:] if isinstance(event, Cancelled)]
        assert sorted(id.group for id in cancelled) == [id.group for id in ids]
        assert await bench.engine.cancel([*ids, order(999).id]) == end

    bench.run(go())


def test_episodes_under_way_are_told_apart_from_those_of_before_a_sync(bench: Bench) -> None:
    """A journal that was begun under one version goes on under the next, and says so of each token."""
    events, [whole] = bench.run(finish(bench, order(470)))
    journal = journal_of(events)
    bench.nudge()
    bench.run(bench.sync([]))
    _, [moved] = bench.run(finish(bench, order(470, journal=journal[:2])))
    versions = moved.versions[moved.action_mask]
    assert set(versions.tolist()) == {bench.version - 1, bench.version}
    first = len(journal[0].token_ids)
    assert moved.logprobs[moved.action_mask][:first].tolist() == whole.logprobs[whole.action_mask][:first].tolist()
