"""Evaluations on a pool, in virtual time."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from actors.messages import EVALUATION, EpisodeId
from actors.rollout.config import SamplingConfig
from cluster.in_flight import EpisodeInFlight
from coa.errors import EpisodeFailed, InfrastructureError, NoEngine
from tests.support.engines import FakeTools, FakeWorld, a_task, order_of, publication
from tests.support.pools import NOW, pool_of
from tests.support.virtual_time import in_virtual_time


def test_an_evaluation_waits_for_what_is_down_as_long_as_it_may_and_samples_no_turn_again() -> None:
    async def go() -> None:
        tools = FakeTools(down=lambda episode: NOW() < 40, tries=1)
        world = FakeWorld(tools=tools, calls_of=lambda episode: 1)
        async with pool_of(world, 1) as pool:
            records = await pool.evaluate(a_task(), range(3), SamplingConfig())
            assert [record.sample for record in records] == [0, 1, 2]
            assert len(world.engines[0].started) > 6
            assert all(order.journal for order in world.engines[0].started[3:])
            tools.down = lambda episode: True
            began = NOW()
            with pytest.raises(InfrastructureError, match=r"^ToolDown: it is down$"):
                await pool.evaluate(a_task(), range(3), SamplingConfig())
            assert 60 < NOW() - began < 75

    in_virtual_time(go())


def test_an_evaluation_does_not_pause_for_an_episode_whose_time_is_over() -> None:
    async def go() -> None:
        async with pool_of(FakeWorld(), 1) as pool:
            attempts = 0

            async def attempt() -> None:
                nonlocal attempts
                attempts += 1
                raise EpisodeFailed("EpisodeTimeout", "too slow", tokens=0, tool_calls=0)

            began = NOW()
            with pytest.raises(EpisodeFailed, match="too slow"):
                await pool._patiently(attempt)
            assert (attempts, NOW()) == (1, began)

    in_virtual_time(go())


def test_an_episode_without_time_is_left_to_an_engine_only_where_it_is_evaluated() -> None:
    trained, evaluated = (EpisodeInFlight(order_of(group=group, limit_s=5.0), spent_s=7.0) for group in (0, EVALUATION))
    assert evaluated.rest().limit_s == 0.0
    with pytest.raises(EpisodeFailed, match="EpisodeTimeout: 5 s were not enough"):
        trained.rest()


def test_evaluations_of_one_task_at_the_same_time_keep_apart() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            greedy, sampled = SamplingConfig(temperature=0.0), SamplingConfig()
            both = await asyncio.gather(
                pool.evaluate(a_task(), range(1), greedy), pool.evaluate(a_task(), range(2), sampled)
            )
            assert [len(records) for records in both] == [1, 2]
            ids = [order.id for order in world.engines[0].started]
            assert len(set(ids)) == 3
            assert {(one.task, one.group) for one in ids} == {("task-0", -1)}
            assert isinstance(ids[0], EpisodeId)

    in_virtual_time(go())


def test_nobody_waits_for_engines_that_are_gone_for_good() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1, patience_s=8.0) as pool:
            world.failing_starts = 99
            world.engines[0].die()
            with pytest.raises(NoEngine):
                await pool.evaluate(a_task(), range(1), SamplingConfig())

    in_virtual_time(go())


def test_log_probs_and_what_engines_are_busy_with_are_asked_of_those_that_serve() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            world.engines[0].die()
            logprobs = await pool.logprobs(np.arange(4, dtype=np.int32))
            assert logprobs.tolist() == [-0.5] * 3
            assert [report.spans for report in await pool.busy()] == [(), ((0.0, 1.0),)]

    in_virtual_time(go())


def test_what_an_engine_was_busy_with_outlives_it() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            await pool.sync(publication(1))
            await asyncio.sleep(1.0)
            world.engines[0].die()
            await asyncio.sleep(1.0)
            assert [report.spans for report in await pool.busy()] == [((0.0, 1.0),)] * 2
            await asyncio.sleep(20.0)
            assert [report.spans for report in await pool.busy()] == [((0.0, 1.0),) * 2, ((0.0, 1.0),)]

    in_virtual_time(go())


def test_an_evaluation_may_have_another_number_of_turns_than_training() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            await pool.evaluate(a_task(), range(1), SamplingConfig())
            own = world.engines[0].started[-1].agent
            await pool.evaluate(a_task(), range(1), SamplingConfig(), own.limits.max_turns + 5)
            more = world.engines[0].started[-1].agent
        assert more == replace(own, limits=replace(own.limits, max_turns=own.limits.max_turns + 5))

    in_virtual_time(go())
