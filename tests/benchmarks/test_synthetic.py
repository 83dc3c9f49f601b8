"""The engine of noise that `benchmarks.data` puts in an engine's place."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

from actors.messages import EpisodeId, EpisodeOrder
from actors.rollout import engine
from actors.rollout.config import EngineConfig, SamplingConfig
from benchmarks.speed.synthetic import WORDS, SyntheticEngine
from coa.grading.rewards import RewardConfig
from tests.support.driver import Driver
from tests.support.executors import Answering
from tests.support.tiny import AGENT, make_model, sum_task


def test_an_engine_of_noise_plays_episodes_as_any_engine_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PolicyAdapter", engine.PolicyAdapter)  # what the engine of noise replaces comes back
    make_model(tmp_path)

    async def answer(_: object) -> str:
        return "42"

    async def play() -> None:
        noise = SyntheticEngine(
            str(tmp_path),
            config=EngineConfig(),
            agent=AGENT,
            reward=RewardConfig(),
            tools=Answering(answer),
            seed=0,
        )
        await noise.ready(0)
        task = sum_task(0)
        orders = [
            EpisodeOrder(id=EpisodeId(task.id, 0, sample), task=task, sampling=SamplingConfig(), agent=AGENT)
            for sample in range(4)
        ]
        played = [scored.trajectory for scored in await Driver(noise).play(orders)]
        assert len(played) == len(orders)
        for trajectory in played:
            said = trajectory.token_ids[trajectory.action_mask]
            assert len(said) > 0
            assert np.all((said >= WORDS.start) & (said < WORDS.stop))

    asyncio.run(asyncio.wait_for(play(), 60))
