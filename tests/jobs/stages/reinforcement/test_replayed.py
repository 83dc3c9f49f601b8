"""A replay on real learners: two ranks train recorded batches, and do so again."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray

from actors.learner.buffer import Finished, Started, Stepped
from cluster.learner_group import LearnerGroup
from coa.config import dump, load
from coa.learning.batches import BatchStore
from coa.learning.orders import Train
from jobs.recipe.find import find_recipe
from jobs.recipe.schema import Recipe
from jobs.run.console import Console
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.replay import Different, plan_replay, recipe_of, replay
from jobs.stages.reinforcement.rl_stats import STAGE, learner_metrics
from jobs.stages.rl import learners_of
from tests.support.tiny import make_model, random_sample

STEPS = 5


async def record(run: RunDir) -> None:
    """What the stage leaves of its learners: batches, records, and the last two checkpoints."""
    dice = np.random.default_rng(0)
    learning = learners_of(run, LearnerGroup, probe=(np.arange(9, dtype=np.int32),), probe_tokens=8)

    async def feed(epoch: int) -> None:
        for version in range(STEPS):
            shares = [[random_sample(dice, 300, version=version) for _ in range(n)] for n in (5, 3)]
            BatchStore(run.batches).write(version + 1, shares)
            references = tuple((ray.put(tuple(share)),) for share in shares)
            assert await learning.put(Train(version=version, shares=references, cursor=version), epoch)

    async with learning:
        async for event in learning.events():
            match event:
                case Started():
                    learning.spawn(feed(event.epoch))
                case Stepped():
                    weights: Any = event.weights
                    row = {**learner_metrics(event.report), "weights": weights.manifest.fingerprint}
                    with run.metrics(STAGE, event.version) as metrics:
                        metrics.write(STAGE, event.version, **row)
                case Finished():
                    pass


def replayed(run: RunDir, *steps: int | None) -> str:
    out = io.StringIO()
    found = RunDir(run.config, Console(out, io.StringIO()))
    plan = plan_replay(found, *(steps or (None, None)))
    plan.check()
    asyncio.run(replay(found, plan))
    return out.getvalue()


@pytest.mark.slow
def test_learners_do_again_bit_for_bit_what_they_did(tmp_path: Path, ray_session: None) -> None:
    overrides = ["run_dir=x", f"rl.steps={STEPS}", "rl.checkpoint_every=2", "rl.learner.ranks=2"]
    config = load(Recipe, find_recipe("tiny"), [*overrides, "placement.learner_cpus=0.5", "wandb.mode=disabled"])
    (tmp_path / "config.yaml").write_text(dump(config))
    run = RunDir(recipe_of(tmp_path), Console(io.StringIO(), io.StringIO()))
    make_model(run.sft_model)
    asyncio.run(record(run))
    said = replayed(run)
    assert f"steps 1 to {STEPS}: equal, bit for bit" in said
    assert "each under the version that sampled it (5 in all)" in said
    said = replayed(run, STEPS, STEPS)
    assert "steps 5 to 5: equal, bit for bit" in said, "from the checkpoint at version 4"
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    rows[1]["loss"] = float(np.nextafter(rows[1]["loss"], 1))
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    with pytest.raises(Different, match=r"^step 2 differs: loss is [-\d.e]+, not [-\d.e]+$"):
        replayed(run)
    assert not (tmp_path / "replay").exists()
