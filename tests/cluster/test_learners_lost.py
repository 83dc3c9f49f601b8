"""Ray Train's controller, killed alone: its ranks die with it, and learners continue from their last checkpoint."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.learner.buffer import Event, Finished, Started, Stepped
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from cluster.learner_group import Learning
from cluster.resources import PlacementConfig
from coa.learning.orders import Train
from coa.storage.checkpoints import open_folder
from coa.storage.keeping import Keeping
from tests.support.tiny import make_model, random_sample

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
STEPS = 3


def test_learners_continue_from_their_checkpoint_if_the_controller_is_killed(tmp_path: Path) -> None:
    import ray

    make_model(tmp_path / "start")
    rng = np.random.default_rng(0)
    samples = tuple(random_sample(rng, 300) for _ in range(3))

    async def struck() -> list[Event]:
        told: list[Event] = []
        learning = Learning(
            "learners",
            keeping=Keeping(folder=open_folder(tmp_path / "checkpoints"), every=1),
            placement=PlacementConfig(),
            model_dir=tmp_path / "start",
            model=ModelConfig(),
            learner=LearnerConfig(),
            objective=Objective(),
            steps=STEPS,
            publish=False,
            output=tmp_path / "trained",
        )

        async def feed(started: Started) -> None:
            for version in range(started.version, STEPS):
                shares: Any = ((ray.put(samples),),)
                if not await learning.put(Train(version=version, shares=shares, cursor=version + 1), started.epoch):
                    return

        async with learning:
            async for event in learning.events():
                told.append(event)
                match event:
                    case Started():
                        learning.beside(feed(event))
                    case Stepped(version=2) if sum(isinstance(one, Started) for one in told) == 1:
                        ray.kill(learning._controller)
                    case _:
                        pass
        return told

    told = asyncio.run(struck())
    first, second = [event for event in told if isinstance(event, Started)]
    assert (first.version, first.cursor) == (0, 0)
    assert second.version == second.cursor
    steps = [event.version for event in told[told.index(second) :] if isinstance(event, Stepped)]
    assert steps == list(range(second.version + 1, STEPS + 1))
    assert isinstance(told[-1], Finished)
    assert (tmp_path / "trained" / "model.safetensors").exists()
