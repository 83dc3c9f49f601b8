"""Engines of a pool that stand still, in virtual time."""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from ray.exceptions import (
    ActorUnavailableError,
)

from cluster.health import State
from tests.support.engines import FakeEngine, FakeTools, FakeWorld, order_of, publication
from tests.support.pools import NOW, SAID, pool_of, tokens_of, undisturbed
from tests.support.virtual_time import in_virtual_time, stand_still


@pytest.mark.parametrize("stop", [FakeEngine.stop_core, FakeEngine.stop_actor])
@pytest.mark.parametrize("syncs", [False, True])
def test_one_that_stands_still_is_named_and_replaced_within_a_minute(
    stop: Callable[[FakeEngine], None], syncs: bool
) -> None:
    orders = [order_of(number, group=number) for number in range(20)]

    async def go() -> None:
        world = FakeWorld(start_s=15.0, tools=FakeTools(seconds=20.0))
        async with pool_of(world) as pool:
            playing = asyncio.gather(*map(pool.play, orders))
            await asyncio.sleep(2.0)
            stop(world.engines[0])
            # Nor can it be ended.
            world.engines[0].kill = partial(setattr, world.engines[0], "released", True)
            stopped = NOW()
            await asyncio.sleep(3.0)
            syncing = asyncio.ensure_future(pool.sync(publication(1))) if syncs else None
            await asyncio.sleep(stopped + 60 - NOW())
            assert pool.states == {0: State.HEALTHY, 1: State.HEALTHY}
            [said] = SAID
            what = "no token for 26 s" if stop is FakeEngine.stop_core else "its actor gave no answer for 26 s"
            assert said.startswith(f"rollout engine 0 died: {what}")
            if syncing is not None:
                assert [report.version for report in await syncing] == [1]
                assert world.engines[2].loaded == [1]
            # It wakes up, and finds that nobody listens.
            before, acknowledged = pool.moves, list(world.engines[0].acknowledged)
            world.engines[0].wake()
            assert tokens_of(await playing) == await undisturbed(orders)
            assert pool.moves == before
            assert world.engines[0].acknowledged == acknowledged

    in_virtual_time(go())


@pytest.mark.parametrize("busy", [False, True])
def test_a_core_that_stops_while_it_loads_is_replaced_within_a_minute_and_others_go_on(busy: bool) -> None:
    async def go() -> None:
        world = FakeWorld(start_s=15.0, sync_s=4.0, tools=FakeTools(seconds=20.0))
        async with pool_of(world) as pool:
            playing = asyncio.gather(*(pool.play(order_of(n, group=n)) for n in range(20 * busy)))
            await asyncio.sleep(2.0)
            syncing = asyncio.ensure_future(pool.sync(publication(1)))
            await asyncio.sleep(3.0)
            world.engines[0].stop_core()
            stopped = NOW()
            assert [report.version for report in await syncing] == [1]
            assert NOW() - stopped < 35.0, "weights are live on the other engine"
            await asyncio.sleep(stopped + 60 - NOW())
            assert pool.states == {0: State.HEALTHY, 1: State.HEALTHY}
            assert SAID == [
                "rollout engine 0 died: its core was paused for new weights for more than 30 s",
            ]
            assert world.engines[2].loaded == [1]
            await playing

    in_virtual_time(go())


def test_a_slow_load_of_large_weights_is_let_go_on() -> None:
    """40 seconds for 20 GB at the lowest rate that there may be, and half a minute more."""

    async def go() -> None:
        large = np.broadcast_to(np.zeros(1, np.uint8), 20 * 10**9)
        world = FakeWorld(sync_s=60.0)
        async with pool_of(world) as pool:
            assert [report.version for report in await pool.sync(publication(1, large))] == [1, 1]
            world.sync_s = 80.0
            assert await pool.sync(publication(2, large)) == []
            await asyncio.sleep(1.0)
            assert {said.partition(": ")[2] for said in SAID} == {
                "its core was paused for new weights for more than 70 s"
            }

    in_virtual_time(go())


@pytest.mark.parametrize("syncs", [False, True])
def test_a_driver_that_stood_still_ends_no_engine_for_it(syncs: bool) -> None:
    """It was stopped, or wrote to a slow disk: what the engines said meanwhile is there, and not read yet."""

    async def go() -> None:
        world = FakeWorld(tools=FakeTools(seconds=20.0))
        async with pool_of(world) as pool:
            playing = asyncio.gather(*(pool.play(order_of(n, group=n)) for n in range(8)))
            await asyncio.sleep(2.3)
            syncing = asyncio.ensure_future(pool.sync(publication(1))) if syncs else None
            await asyncio.sleep(0.3)
            stand_still(45.0)
            await asyncio.sleep(10.0)
            assert pool.states == {0: State.HEALTHY, 1: State.HEALTHY}
            if syncing is not None:
                assert len(await syncing) == 2
            await playing
            assert (pool.restarts, SAID) == (0, [])

    in_virtual_time(go())


def test_what_another_incarnation_says_is_refused() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            playing = asyncio.ensure_future(pool.play(order_of()))
            await asyncio.sleep(1.0)
            world.engines[0].incarnation, refused = "another", world.engines[0]
            refused.events = replace_incarnation(refused)
            await playing
            assert len(world.engines) == 2
            assert "it answered as another" in SAID[0]

    in_virtual_time(go())


def replace_incarnation(engine: FakeEngine) -> Callable[..., Any]:
    plain = FakeEngine.events

    async def events(after: int, wait_s: float):
        return replace(await plain(engine, after, wait_s), incarnation="another, woken")

    return events


def test_one_that_could_not_be_reached_for_a_moment_is_kept() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            [engine] = world.engines
            plain, failures = engine.events, iter([ActorUnavailableError("?", None)] * 3)

            async def events(after: int, wait_s: float):
                if (error := next(failures, None)) is not None:
                    raise error
                return await plain(after, wait_s)

            engine.events = events
            playing = asyncio.ensure_future(pool.play(order_of()))
            await asyncio.sleep(4.0)
            assert pool.states == {0: State.SUSPECT}
            await playing
            assert pool.states == {0: State.HEALTHY}
            assert world.engines == [engine]

    in_virtual_time(go())
