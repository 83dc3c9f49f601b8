"""The KV cache of a real engine: what is computed again after new weights, and when it is too small."""

import asyncio
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.messages import CacheStats, EpisodeId, EpisodeOrder
from actors.rollout.adapter import PolicyAdapter
from actors.rollout.config import EngineConfig, KvOnUpdate, SamplingConfig
from actors.rollout.engine import RolloutEngine
from actors.rollout.kv_accounting import EpisodeCache
from cluster.health import PoolConfig
from cluster.pool import EnginePool
from coa.agent.codec import Stops
from coa.agent.episode import Ask, Grammar
from coa.agent.journal import Said
from coa.grading.rewards import RewardConfig
from coa.planning.admission import Admission
from coa.tools.base import ToolCall
from coa.types import Floats, Scored, Tokens
from tests.support.executors import Answering
from tests.support.tiny import AGENT, make_model, sum_task

pytestmark = pytest.mark.slow
BLOCK = 32
PROMPT, SAID, OBSERVED = 100, 40, 20
GREEDY = SamplingConfig(temperature=0.0)


def words(count: int) -> Tokens:
    return np.random.default_rng(count).integers(0, 100, count).astype(np.int32)


async def say(adapter: PolicyAdapter, prompt: Tokens, turn: int, cache: EpisodeCache) -> Said:
    ask = Ask(prompt=prompt, turn=turn, max_tokens=SAID, constraint=None)
    return await adapter.generate(ask, sampling=GREEDY, stops=Stops((), ()), seed=0, priority=0, cache=cache)


async def drift(adapter: PolicyAdapter, prompt: Tokens, said: Said) -> float:
    """Largest difference between recorded log-probs and those of the engine's present weights alone."""
    exact: Floats = await adapter.logprobs(np.concatenate([prompt, said.token_ids]))
    return float(np.abs(exact[-len(said.token_ids) :] - said.logprobs).max())


@dataclass
class Turns:
    """What came of a turn, new weights, and the turn after the tool's answer."""

    said: int
    """Tokens of the first turn."""
    cache: CacheStats
    """What the second turn cost."""
    drift: float
    """Of the second turn."""
    drift_of_others: float
    """Of an episode that began after the new weights."""


async def with_an_update_between(model: str, other: Path, mode: KvOnUpdate) -> Turns:
    from safetensors.torch import load_file

    from actors.weights.manifest import serialise

    config = EngineConfig(max_concurrent=8, kv_cache_gib=0.1, block_size=BLOCK, kv_on_update=mode)
    adapter = await asyncio.to_thread(PolicyAdapter, model, config, max_tokens=256, tag_tokens=frozenset())
    try:
        await adapter.name_version(0)
        prompt, episode = words(PROMPT), EpisodeCache(syncs=adapter.syncs)
        first = await say(adapter, prompt, 0, episode)
        await adapter.load(1, serialise(load_file(other / "model.safetensors")))
        before = adapter.cache
        context = np.concatenate([prompt, first.token_ids, words(OBSERVED)])
        second = await say(adapter, context, 1, episode)
        stats = adapter.cache - before
        fresh = await say(adapter, prompt, 0, EpisodeCache(syncs=adapter.syncs))
        drifts = await drift(adapter, context, second), await drift(adapter, prompt, fresh)
        return Turns(len(first.token_ids), stats, *drifts)
    finally:
        adapter.shutdown()


def test_a_turn_after_new_weights_finds_the_context_of_its_episode_only_if_it_is_kept(tmp_path: Path) -> None:
    model, other = make_model(tmp_path / "a"), make_model(tmp_path / "b", seed=1)
    recompute, keep = (asyncio.run(with_an_update_between(str(model), other, mode)) for mode in KvOnUpdate)
    assert recompute.said == keep.said
    computed, prefill = PROMPT + keep.said - 1, PROMPT + keep.said + OBSERVED
    assert recompute.cache == CacheStats(prefill=prefill, recomputed=computed)
    assert keep.cache == CacheStats(prefill=prefill, recomputed=computed % BLOCK), "whole blocks are cached"
    assert recompute.drift < 1e-4
    assert keep.drift > 1e-3, "its context is the older version's"
    assert max(recompute.drift_of_others, keep.drift_of_others) < 1e-4, "an episode takes nothing from before it began"


# --- a cache that is too small --------------------------------------------------------------------------------------

LONG = replace(AGENT, grammar=Grammar.enforce, limits=replace(AGENT.limits, max_turn_tokens=150, max_tag_tokens=140))
EPISODES, AT_ONCE = 160, 32


class InProcess:
    """A RolloutEngine as the pool sees engines, in this process."""

    node = ""

    def __init__(self, engine: RolloutEngine) -> None:
        self._engine, self.incarnation = engine, engine.incarnation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def busy(self) -> Any:
        return self._engine.busy()

    def take(self, ids: Sequence[EpisodeId]) -> Sequence[Awaitable[Scored]]:
        async def one(id: EpisodeId) -> Scored:
            [scored] = await self._engine.take([id])
            assert isinstance(scored, Scored)
            return scored

        return [asyncio.ensure_future(one(id)) for id in ids]

    def kill(self) -> None:
        self._engine.shutdown()


async def answer(call: ToolCall) -> str:
    return "42"


async def preemptions(model: Path) -> tuple[int, list[list[int]]]:
    """While as many long episodes are played as an engine has places for; and their tokens."""
    config = EngineConfig(max_concurrent=AT_ONCE, kv_cache_gib=0.0006, block_size=BLOCK)

    async def launch(incarnation: str) -> Any:
        return InProcess(
            await asyncio.to_thread(
                RolloutEngine,
                str(model),
                config=config,
                agent=LONG,
                reward=RewardConfig(),
                tools=Answering(answer),
                seed=7,
                incarnation=incarnation,
            )
        )

    pool = EnginePool(launch, PoolConfig(), LONG, places=AT_ONCE, patience_s=60.0)
    pool.add()
    try:
        await pool.ready()
        tasks = [sum_task(number) for number in range(EPISODES)]
        orders = [
            EpisodeOrder(id=EpisodeId(task.id, number, 0), task=task, sampling=SamplingConfig(), agent=LONG)
            for number, task in enumerate(tasks)
        ]
        played = await asyncio.gather(*map(pool.play, orders))
        return pool.occupancy.cache.preemptions, [one.trajectory.token_ids.tolist() for one in played]
    finally:
        await pool.stop()


def test_an_engine_with_a_small_cache_rarely_preempts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_model(tmp_path)
    limited, tokens = asyncio.run(preemptions(model))
    monkeypatch.setattr(Admission, "after", lambda self, **report: self)
    plain, same = asyncio.run(preemptions(model))
    print(f"{plain} preemptions, {limited} with the rule")
    assert plain > EPISODES / 2
    assert 0 < limited < 0.5 * plain
    assert tokens == same, "what is sampled does not depend on it"
