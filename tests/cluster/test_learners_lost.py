"""Learners whose controller is killed alone, or one of whose ranks is stopped, on real processes."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any, cast

import numpy as np
import psutil
import pytest

from actors.learner.buffer import Event, Finished, Started, Stepped
from actors.learner.config import LearnerConfig, ModelConfig, Objective
from cluster import learner_group
from cluster.learner_group import LearnerGroup
from cluster.resources import PlacementConfig
from coa.learning.orders import Train
from coa.storage.checkpoints import open_folder
from coa.storage.keeping import Keeping
from coa.types import Sample
from tests.support.tiny import make_model, random_sample

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_session")]
STEPS = 3


def some_samples() -> tuple[Sample, ...]:
    rng = np.random.default_rng(0)
    return tuple(random_sample(rng, 300) for _ in range(3))


def learning_of(folder: Path, ranks: int, **settings: Any) -> LearnerGroup:
    make_model(folder / "start")
    return LearnerGroup(
        "learners",
        keeping=Keeping(folder=open_folder(folder / "checkpoints"), every=1),
        placement=PlacementConfig(),
        model_dir=folder / "start",
        model=ModelConfig(),
        learner=LearnerConfig(ranks=ranks),
        objective=Objective(),
        steps=STEPS,
        publish=False,
        output=folder / "trained",
        **settings,
    )


async def feed(learning: LearnerGroup, started: Started) -> None:
    """All batches from where the learners are, until they start again."""
    import ray

    for version in range(started.version, STEPS):
        shares: Any = tuple((ray.put(some_samples()),) for _ in range(learning.replicas))
        if not await learning.put(Train(version=version, shares=shares, cursor=version + 1), started.epoch):
            return


def test_learners_continue_from_their_checkpoint_if_the_controller_is_killed(tmp_path: Path) -> None:
    import ray

    async def struck() -> list[Event]:
        told: list[Event] = []
        async with learning_of(tmp_path, 1) as learning:
            async for event in learning.events():
                told.append(event)
                match event:
                    case Started():
                        learning.spawn(feed(learning, event))
                    case Stepped(version=2) if sum(isinstance(one, Started) for one in told) == 1:
                        ray.kill(cast(Any, learning._controller))
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


def test_a_rank_that_is_stopped_is_named_while_the_others_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learner_group, "WATCH_S", 1.0)
    monkeypatch.setattr(learner_group, "STALLED_S", 40.0)

    async def stopped() -> list[str]:
        told: list[str] = []
        heard = asyncio.Event()

        def say(text: str) -> None:
            told.append(text)
            heard.set()

        async def strike(learning: LearnerGroup, started: Started) -> None:
            await asyncio.sleep(2 * 5.0)  # both have said that they live
            ours = psutil.Process().children(recursive=True)
            last = max((one for one in ours if "RayTrainWorker" in one.name()), key=lambda one: one.create_time())
            os.kill(last.pid, signal.SIGSTOP)
            try:
                feeding = learning.spawn(feed(learning, started))
                async with asyncio.timeout(180):
                    await heard.wait()
            finally:
                os.kill(last.pid, signal.SIGCONT)
            await feeding

        async with learning_of(tmp_path, 2, say=say) as learning:
            async for event in learning.events():
                if isinstance(event, Started):
                    learning.spawn(strike(learning, event))
        return told

    told = asyncio.run(stopped())
    how = "gave no sign of life for more than 20 s; learners restart after collective_s=1800 s, or PyTorch's limit"
    assert told[0] in [f"learner rank {rank} {how}" for rank in range(2)]
