"""With `max_staleness: 0` the asynchronous loop is a plain synchronous one, whatever is dropped on the way."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from safetensors.torch import load, load_file

from coa.learning.batches import BatchStore
from coa.learning.samples import to_samples
from coa.learning.window import Ticket
from coa.reporting.metrics import read_metrics
from coa.types import Sample
from jobs.run.run_dir import RunDir
from jobs.stages.engines import engine_pool
from jobs.stages.reinforcement.groups import play_group
from jobs.stages.rl import rl
from jobs.stages.services import tool_client
from tests.support.engines import publication
from tests.support.loop_runs import GROUPS, Recording, make_run
from tests.support.ranks import weights_of

pytestmark = pytest.mark.slow
STEPS, ENGINES = 20, 2


@dataclass
class Plain:
    """What the synchronous loop came to."""

    losses: list[float] = field(default_factory=list)
    batches: list[set[int]] = field(default_factory=list)
    """The groups of each."""
    dropped: int = 0
    """Groups of equal rewards."""
    refills: int = 0
    """Groups that took the places of such."""


async def synchronous(run: RunDir, pool: Recording, learner: Any) -> Plain:
    """The plain loop: play a batch to its end, learn from it, load the weights, and again."""
    config, found, group = run.config.rl, Plain(), 0
    algorithm = config.algorithm_of()
    await pool.sync(publication(0, ray.put(weights_of(learner))))
    for version in range(config.steps):
        batch: list[Sample] = []
        missing, refills = config.window.groups_per_batch, 0
        while missing:
            task = run.training_task("rl", group)
            played = await play_group(pool, task, Ticket(group, version), group, config, run.config.agent)
            missing -= 1
            if algorithm.keep(played.episodes):
                masked = config.mask_truncated
                batch.extend(to_samples(played.episodes, algorithm, played.number, mask_truncated=masked))
            else:
                found.dropped += 1
                if refills < config.window.max_refills * config.window.groups_per_batch:
                    missing, refills = missing + 1, refills + 1
            group += 1
        found.refills += refills
        found.batches.append({sample.group for sample in batch})
        found.losses.append(learner.step(batch, version).loss)
        await pool.sync(publication(version + 1, ray.put(weights_of(learner))))
    return found


@pytest.fixture
def learner(request: pytest.FixtureRequest, one_rank: None, tmp_path: Path) -> Any:
    """Of STEPS steps, or of as many as the test says."""
    from actors.learner.learner import Learner

    run = make_run(tmp_path / "reference", max_staleness=0)
    steps = getattr(request, "param", STEPS)
    return Learner(run.sft_model, run.config.model, run.config.rl.learner, steps=steps)


@pytest.fixture
def loop() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as loop:
        yield loop


@asynccontextmanager
async def engines(run: RunDir) -> AsyncIterator[tuple[Any, Any]]:
    async with tool_client(run) as tools, engine_pool(run, run.sft_model, tools) as pool:
        yield pool, tools


def test_without_staleness_the_loop_is_the_synchronous_one(
    ray_session: None, learner: Any, loop: asyncio.Runner, tmp_path: Path
) -> None:
    """Twenty steps on two engines, with groups that say nothing, in whose places others are played."""
    run = make_run(tmp_path / "run", f"placement.engines={ENGINES}", max_staleness=0, steps=STEPS)

    async def both() -> tuple[Plain, Recording, Recording, dict[str, Any]]:
        async with engines(run) as (pool, tools):
            plain = Recording(pool)
            ours: Any = Recording(pool)
            expected = await synchronous(run, plain, learner)
            result = await rl(run, ours, tools)
            assert all(report.spans for report in await pool.busy()), "both engines played"
            return expected, plain, ours, result

    expected, plain, ours, result = loop.run(both())
    assert expected.dropped > expected.refills > 0, "some places were not filled again"
    assert (result["dropped"], result["refills"]) == ({"no variance": expected.dropped}, expected.refills)
    assert ours.played.keys() == plain.played.keys()
    for episode, token_ids in plain.played.items():
        assert np.array_equal(ours.played[episode], token_ids)
    store = BatchStore(run.batches)
    batches = [{sample.group for share in store.read(step) for sample in share} for step in range(1, STEPS + 1)]
    assert batches == expected.batches
    assert max(map(len, batches)) == GROUPS
    records = read_metrics(run.folder / "metrics.jsonl")
    assert len(records) == STEPS
    assert [record["loss"] for record in records] == expected.losses, "bit for bit"
    assert {record["engines_serving"] for record in records} == {ENGINES}
    assert result["staleness_max"] == 0
    learnt = weights_of(learner)
    assert learnt is not None
    weights, reference = load_file(run.model / "model.safetensors"), load(learnt.tobytes())
    assert weights.keys() == reference.keys()
    assert all(weights[name].equal(reference[name]) for name in reference)


@pytest.mark.parametrize("learner", [3], indirect=True)
def test_in_turns_on_one_device_the_loop_is_the_synchronous_one_too(
    ray_session: None, learner: Any, loop: asyncio.Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Engines sleep while the rank learns, as far as a CPU lets them, and copy its weights from its memory."""
    settings = ("engine.sleep_mode=true", "rl.weights.transport=ipc")
    run = make_run(tmp_path / "run", *settings, max_staleness=0, steps=3)
    slept: list[int] = []

    async def both() -> tuple[Plain, Recording, Recording, dict[str, Any]]:
        async with engines(run) as (pool, tools):
            plain, sleep = Recording(pool), pool.sleep
            expected = await synchronous(run, plain, learner)

            async def counted() -> None:
                await sleep()
                slept.append(pool.occupancy.playing)

            monkeypatch.setattr(pool, "sleep", counted)
            ours: Any = Recording(pool)
            return expected, plain, ours, await rl(run, ours, tools)

    expected, plain, ours, result = loop.run(both())
    assert ours.played.keys() == plain.played.keys()
    for episode, token_ids in plain.played.items():
        assert np.array_equal(ours.played[episode], token_ids)
    records = read_metrics(run.folder / "metrics.jsonl")
    assert [record["loss"] for record in records] == expected.losses, "bit for bit"
    assert result["syncs"] == 4
    assert slept == [0] * 4, "before the learners came up, and before each step"
