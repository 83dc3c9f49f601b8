"""Turns that a pool samples for programs, whose engines are killed, in virtual time."""

import asyncio
from typing import Any

import numpy as np
import pytest

from actors.messages import EpisodeId, TurnOrder
from cluster.health import PoolConfig
from cluster.in_flight import EpisodeInFlight
from coa.agent.journal import Said
from coa.errors import EpisodeFailed
from coa.planning.admission import Load
from coa.types import Scored
from tests.support.engines import FakeWorld, order_of
from tests.support.patience import until
from tests.support.pools import pool_of
from tests.support.virtual_time import in_virtual_time


def turn_of(call: int, *, group: int = 0) -> TurnOrder:
    sampling: Any = None  # a fake engine samples as it likes
    prompt = np.arange(50, dtype=np.int32)
    return TurnOrder(id=EpisodeId("t", group, 0, call=call), prompt=prompt, sampling=sampling, draw=call)


def test_turns_and_episodes_are_spread_over_the_engines() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 2) as pool:
            turns = [asyncio.ensure_future(pool.take_turn(turn_of(call))) for call in range(1, 9)]
            episode = asyncio.ensure_future(pool.play(order_of()))
            await asyncio.sleep(0.1)
            loads = [replica.episodes.load for replica in pool._slots.replicas().values()]
            assert sorted(load.episodes for load in loads) == [4, 5]
            assert sum(load.tokens for load in loads) == 8 * 50, "what turns begin with counts"
            said = await asyncio.gather(*turns)
            assert [int(one.token_ids[0]) for one in said] == list(range(1, 9))
            assert isinstance(await episode, Scored)
            await asyncio.sleep(1)
            assert {replica.episodes.load for replica in pool._slots.replicas().values()} == {Load(0, 0)}

    in_virtual_time(go())


def test_a_turn_whose_engine_dies_is_sampled_on_another_one_and_is_the_same() -> None:
    async def sampled(deaths: int) -> list[int]:
        world = FakeWorld()
        async with pool_of(world, 2) as pool:
            asking = asyncio.ensure_future(pool.take_turn(turn_of(1)))
            for _ in range(deaths):
                await asyncio.sleep(0.5)
                next(engine for engine in world.alive if engine._generating).die()
            said = await asking
            assert pool.moves == deaths
            return said.token_ids.tolist()

    async def go() -> None:
        assert await sampled(0) == await sampled(1)

    in_virtual_time(go())


def test_a_turn_that_kills_each_engine_fails() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1, config=PoolConfig(deaths=2)) as pool:
            asking = asyncio.ensure_future(pool.take_turn(turn_of(1)))
            for _ in range(2):
                await until(lambda: any(engine._generating for engine in world.alive))
                next(engine for engine in world.alive if engine._generating).die()
            with pytest.raises(EpisodeFailed, match="EngineDied"):
                await asking

    in_virtual_time(go())


def test_a_turn_that_nobody_waits_for_any_more_is_cancelled() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            asking = asyncio.ensure_future(pool.take_turn(turn_of(1)))
            await asyncio.sleep(0.5)
            asking.cancel()
            await asyncio.sleep(1)
            assert world.engines[0].cancelled == [turn_of(1).id]

    in_virtual_time(go())


def test_a_turn_that_was_finished_where_the_engine_died_goes_on_as_it_is() -> None:
    turn = EpisodeInFlight(turn_of(1))
    assert turn.rest() == turn.order
    said = Said(token_ids=np.array([1], np.int32), logprobs=np.zeros(1, np.float32), versions=((0, 1),), ended=True)
    turn.journal.append(said)
    rest = turn.rest()
    assert isinstance(rest, TurnOrder)
    assert rest.journal == (said,)
