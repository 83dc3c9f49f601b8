"""Real learners whose rank is killed behind damaged checkpoints, with checkpoints at an address and exported models."""

import asyncio
import io
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.learner.buffer import Committed, Finished, Started, Stepped
from actors.learner.config import ModelConfig
from actors.learner.model.load import load_model
from benchmarks.chaos.plan import Part
from benchmarks.chaos.processes import Below, send
from cluster.learner_group import LearnerGroup
from coa.agent.codec import Codec
from coa.config import load
from coa.learning.orders import Train
from coa.storage.checkpoints import CheckpointFolder, checkpoint_name
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.agent_file import AGENT_FILE
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.rl_stats import STAGE
from jobs.stages.rl import learners_of
from tests.support.tiny import make_model, random_sample

pytestmark = pytest.mark.slow
STEPS = 7
STRIKES = {3: False, 5: True}
"""After the checkpoint of this version is committed, whether the newest one is damaged before the rank is killed. Both
kills are more than `learner_restarts`."""


def run_at(folder: Path) -> RunDir:
    settings = [
        f"run_dir={folder / 'run'}",
        f"checkpoints.storage=file://{folder / 'store'}",
        "checkpoints.keep=2",
        "checkpoints.keep_every=4",
        "checkpoints.export_every=3",
        f"rl.steps={STEPS}",
        "rl.checkpoint_every=1",
        "rl.learner.ranks=1",
        "placement.learner_restarts=1",
        "wandb.mode=disabled",
    ]
    run = RunDir(load(Recipe, find_recipe("tiny"), settings), Console(io.StringIO(), io.StringIO()))
    run.prepare()
    for model in (run.sft_model, run.start_model):
        make_model(model)
    return run


class Struck:
    """A stage whose rank is killed after some checkpoints."""

    def __init__(self, run: RunDir) -> None:
        self.folder: CheckpointFolder = run.storage().below(STAGE)
        self.learning = learners_of(run, LearnerGroup, publish=False)
        self.strikes = dict(STRIKES)
        self.starts: list[int] = []
        self.steps: list[int] = []
        self.committed: list[Committed] = []
        self.warned: list[str] = []
        self.learning._say = self.warned.append

    async def feed(self, started: Started) -> None:
        dice = np.random.default_rng(0)
        shares = [[random_sample(dice, 100, version=0) for _ in range(2)] for _ in range(STEPS)]
        for version in range(started.version, STEPS):
            if version in self.strikes:  # nothing is committed behind the checkpoint after which it is killed
                return
            order = Train(version=version, shares=((ray.put(tuple(shares[version])),),), cursor=version)
            if not await self.learning.put(order, started.epoch):
                return

    def strike(self, version: int) -> None:
        if self.strikes.pop(version):
            [states] = Path(self.folder.of(self.folder.names()[-1]), "state").glob("*model_states.pt")
            os.truncate(states, states.stat().st_size // 2)
        [rank] = [process for seen, process in Below().look_below(0.0, os.getpid()) if seen.part is Part.rank]
        send(rank, signal.SIGKILL)

    async def play(self) -> None:
        async with self.learning:
            async for event in self.learning.events():
                match event:
                    case Started():
                        self.starts.append(event.version)
                        self.learning.spawn(self.feed(event))
                    case Stepped():
                        self.steps.append(event.version)
                    case Committed():
                        self.committed.append(event)
                        if event.version in self.strikes:
                            await asyncio.to_thread(self.strike, event.version)
                    case Finished():
                        pass


def test_learners_go_on_from_whole_checkpoints_and_leave_models_behind(tmp_path: Path, ray_session: None) -> None:
    run = run_at(tmp_path)

    async def body() -> Struck:
        struck = Struck(run)
        await struck.play()
        return struck

    struck = asyncio.run(body())
    assert struck.starts == [0, 3, 4]
    assert struck.steps == [1, 2, 3, 4, 5, 5, 6, 7]
    [warned] = struck.warned
    assert warned.startswith("a damaged checkpoint is set aside, and learners start from the one of version 4 (checkp")
    assert list(struck.folder.versions().items()) == [
        (checkpoint_name(version, start), version) for version, start in ((4, 2), (6, 3), (7, 3))
    ]
    found: Any = struck.committed[0]
    assert 0 < found.write_s < found.commit_s
    assert found.size > 3 * (run.sft_model / "model.safetensors").stat().st_size, "the optimizer's state is part of it"
    assert struck.folder.path.startswith(f"{tmp_path}/store/run/")
    assert run.storage().below(STAGE) == struck.folder, "a resumed run finds them again"
    assert not (run.checkpoints / STAGE).exists()
    exports = sorted((run.folder / "exports").iterdir())
    assert [path.name for path in exports] == ["rl-00003", "rl-00006"]
    for path in exports:
        load_model(path, ModelConfig())
        Codec.load(path)
        assert (path / AGENT_FILE).exists()
