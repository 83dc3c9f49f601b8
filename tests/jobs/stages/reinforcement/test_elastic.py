"""Reinforcement with engines that come and go, on fake engines and fake learners, in virtual time."""

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path

import pytest

from actors.learner.buffer import Finished, Started, Stepped
from coa.learning.accounts import TRAINED
from coa.learning.scaling import EngineScaling
from coa.reporting.metrics import read_metrics
from jobs.run.console import Stage
from jobs.run.run_dir import RunDir
from jobs.stages.reinforcement.elastic import elastic_engines
from jobs.stages.reinforcement.loop import Reinforcement
from tests.support.engines import FakeTools, FakeWorld
from tests.support.pools import SAID, pool_of
from tests.support.rl_loop import GROUPS, FakeLearners, accounts_of, make_run
from tests.support.virtual_time import in_virtual_time

SCALING = EngineScaling(look_back_s=6.0, cooldown_s=12.0, handover_s=2.0)
PLACES = 4
"""Twice as many as an engine samples at a time."""


def elastic_run(folder: Path, steps: int, *settings: str) -> RunDir:
    run = make_run(folder, "engine.max_concurrent=2", *settings, max_staleness=1, steps=steps)
    pool = replace(run.config.pool, scaling=SCALING, deaths=1000)
    return RunDir(replace(run.config, pool=pool), run.console)


@dataclass
class Went:
    waited: float = 0.0
    """Seconds in which the learners had no batch."""
    engines: list[int] = field(default_factory=list)
    """That were wished for, step by step."""
    said: list[str] = field(default_factory=list)


async def reinforce(run: RunDir, world: FakeWorld, *, kill_every_s: float | None = None, rests_at: int = 10**9) -> Went:
    """rests_at: the step from which on episodes are short."""
    config, went = run.config.rl, Went()
    async with pool_of(world, 1, places=PLACES, config=run.config.pool) as pool:
        learners = FakeLearners(config.steps, config.checkpoint_every)
        elastic = elastic_engines(pool, run.config, went.said.append)
        loop = Reinforcement(run, pool, learners, Stage("rl", None), elastic=elastic, put=lambda share: share)

        async def follow() -> None:
            began = asyncio.get_running_loop().time()
            while True:
                match event := await learners.events.get():
                    case Started():
                        await loop.start(event)
                    case Stepped():
                        await loop.stepped(event)
                        if event.version == rests_at:
                            world.calls_of = lambda episode: 0
                            world.token_s = 0.01
                    case Finished():
                        await loop.caught_up(event)
                        went.waited = asyncio.get_running_loop().time() - began - 2.0 * config.steps
                        return

        async def kill() -> None:
            while kill_every_s:
                await asyncio.sleep(kill_every_s)
                if len(world.alive) > 1:
                    world.alive[0].die()

        working = [asyncio.ensure_future(one) for one in (learners.learn(), follow(), kill())]
        await asyncio.wait({working[1], learners.failure}, return_when=asyncio.FIRST_COMPLETED)
        for one in (*working, *learners._spawned):
            one.cancel()
        working[1].result()
        loop.ledger.finish(config.steps)
        loop.close()
    went.engines = [record["engines_wished"] for record in read_metrics(run.folder / "metrics.jsonl")]
    return went


def slow_world() -> FakeWorld:
    """An episode of two turns takes some three seconds; a batch of twelve is learnt in two."""
    return FakeWorld(tools=FakeTools(seconds=0.3), token_s=0.08, start_s=2.0, sync_s=0.1, calls_of=lambda episode: 1)


def balanced(run: RunDir, world: FakeWorld) -> None:
    """Nothing is lost, and no tool call completes twice."""
    accounts = accounts_of(run)
    assert accounts.faults == []
    assert Counter(map(accounts.state, accounts.attempts.values()))[TRAINED] == GROUPS * run.config.rl.steps
    assert set(world.tools.completed.values()) <= {1}


def test_engines_come_as_the_learners_wait_and_go_as_they_rest(tmp_path: Path) -> None:
    run, world = elastic_run(tmp_path / "run", 26, "placement.max_engines=3"), slow_world()
    went = in_virtual_time(reinforce(run, world, rests_at=6))
    assert [engines for engines, _ in groupby(went.engines)] == [2, 3, 2, 1], "the first step ended with two"
    assert len(went.said) == 4
    balanced(run, world)


@pytest.mark.slow
def test_the_learners_wait_half_as_long_as_with_one_engine(tmp_path: Path) -> None:
    alone, elastic = elastic_run(tmp_path / "alone", 15), elastic_run(tmp_path / "run", 15, "placement.max_engines=3")
    waited = in_virtual_time(reinforce(alone, slow_world()))
    less = in_virtual_time(reinforce(elastic, slow_world()))
    assert set(waited.engines) == {1}
    assert waited.said == []
    assert less.waited < 0.5 * waited.waited


@pytest.mark.slow
def test_the_same_where_an_engine_is_taken_away_now_and_then(tmp_path: Path) -> None:
    run, world = elastic_run(tmp_path / "run", 20, "placement.max_engines=3"), slow_world()
    went = in_virtual_time(reinforce(run, world, kill_every_s=15.0))
    assert 3 in went.engines
    assert sum("died" in said for said in SAID) > 4
    balanced(run, world)


@pytest.mark.parametrize("settings", [(), ("placement.min_engines=1", "placement.max_engines=1")])
def test_a_fixed_number_has_no_controller(tmp_path: Path, settings: tuple[str, ...]) -> None:
    run = make_run(tmp_path / "run", *settings)

    async def go() -> None:
        async with pool_of(FakeWorld(), 1) as pool:
            assert elastic_engines(pool, run.config, print) is None

    in_virtual_time(go())
