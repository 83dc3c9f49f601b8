"""Engines that come and go while episodes are played, in virtual time."""

import asyncio
import math
from collections import deque
from collections.abc import Mapping

import pytest

from cluster.health import State
from cluster.notices import LOOK_EVERY_S, MARGIN_S, heed
from cluster.pool import EnginePool
from tests.support.engines import FakeTools, FakeWorld, order_of, publication
from tests.support.pools import NOW, pool_of, tokens_of
from tests.support.virtual_time import in_virtual_time

ORDERS = [order_of(number, group=number) for number in range(12)]


def busy_world(**settings: object) -> FakeWorld:
    return FakeWorld(calls_of=lambda episode: 6, **settings)  # pyright: ignore[reportArgumentType]


async def undisturbed() -> list[list[int]]:
    async with pool_of(busy_world(), 1) as pool:
        return tokens_of(await asyncio.gather(*map(pool.play, ORDERS)))


def once_each(world: FakeWorld) -> bool:
    """Whether each call of each episode has completed exactly once."""
    return len(world.tools.completed) == 6 * len(ORDERS) and set(world.tools.completed.values()) == {1}


def test_a_joining_engine_is_given_nothing_before_it_has_the_newest_weights() -> None:
    async def go() -> None:
        world = busy_world(sync_s=20.0)
        async with pool_of(world, 1, places=4) as pool:
            await pool.sync(publication(1, "weights"))
            playing = asyncio.gather(*map(pool.play, ORDERS))
            pool.resize(3, handover_s=30.0)
            await asyncio.sleep(6.0)
            joined = world.engines[1:]
            assert [engine.version for engine in joined] == [0, 0], "they are up, with the weights of their start"
            assert pool.states == {0: State.HEALTHY, 1: State.STALE, 2: State.STALE}
            assert (pool.occupancy.serving, pool.occupancy.joining, pool.size) == (1, 2, 3)
            publishing = asyncio.ensure_future(pool.sync(publication(2, "weights")))
            await asyncio.sleep(30.0)
            assert [len(engine.started) for engine in joined] == [0, 0], "what they have loaded is not the newest"
            await publishing
            await playing
            assert [engine.version for engine in joined] == [2, 2]
            assert all(engine.started for engine in joined)

    in_virtual_time(go())


def test_the_first_engines_can_leave_and_hand_their_episodes_over() -> None:
    """Long calls of tools: what has not ended after the time for it goes on elsewhere, from its last finished turn."""

    async def go() -> None:
        expected = await undisturbed()
        world = busy_world(tools=FakeTools(seconds=20.0))
        async with pool_of(world, 3) as pool:
            first, second, third = world.engines
            playing = asyncio.gather(*map(pool.play, ORDERS))
            await asyncio.sleep(0.5)
            pool._slots.leave(0, 30.0)
            pool._slots.leave(1, 0.0)
            await asyncio.sleep(20.0)
            assert (second.released, first.released, pool.size) == (True, False, 1)
            assert {len(first.started), len(second.started)} == {4}, "nothing new came to who leaves"
            await asyncio.sleep(11.0)
            assert first.released
            assert tokens_of(await playing) == expected
            assert pool.states == {2: State.HEALTHY}
            moved = [order for order in third.started if order.journal]
            assert len(moved) > 2, "episodes went on from their journals"
            assert once_each(world)
            assert pool.restarts == 0

    in_virtual_time(go())


def test_an_engine_that_leaves_ends_as_soon_as_its_episodes_have() -> None:
    async def go() -> None:
        world = busy_world(tools=FakeTools(seconds=1.0))
        async with pool_of(world, 2) as pool:
            playing = asyncio.gather(*map(pool.play, ORDERS))
            await asyncio.sleep(0.5)
            began = NOW()
            pool.resize(1, handover_s=1000.0)
            await playing
            await asyncio.sleep(0.1)
            assert [engine.released for engine in world.engines].count(True) == 1
            assert NOW() - began < 60.0
            assert pool.moves == 0

    in_virtual_time(go())


def test_what_an_engine_did_is_told_in_its_place_after_it_has_left() -> None:
    async def go() -> None:
        async with pool_of(busy_world(), 2) as pool:
            assert [report.spans for report in await pool.busy()] == [((0.0, 1.0),)] * 2
            await pool._slots.retire(0)
            left, stayed = pool._slots.busy()
            assert left.place_s > 0
            await asyncio.sleep(7.0)
            assert pool._slots.busy() == [left, stayed], "nobody was asked"
            gone, there = await pool.busy()
            assert gone == left
            assert there.place_s == pytest.approx(stayed.place_s + 7.0, abs=0.01)

    in_virtual_time(go())


def test_an_engine_that_loads_weights_is_asked_what_it_does_too() -> None:
    async def go() -> None:
        world = busy_world(sync_s=5.0)
        async with pool_of(world, 1) as pool:
            [before] = await pool.busy()
            syncing = asyncio.ensure_future(pool.sync(publication(1)))
            await asyncio.sleep(2.0)
            assert pool.states == {0: State.STALE}
            [after] = await pool.busy()
            assert after.place_s == pytest.approx(before.place_s + 2.0, abs=0.01)
            await syncing

    in_virtual_time(go())


def test_who_does_not_serve_goes_first_and_then_who_frees_a_node() -> None:
    async def go() -> None:
        world = busy_world(nodes=deque(["shared", "alone", "shared"]))
        async with pool_of(world, 3) as pool:
            playing = asyncio.gather(*map(pool.play, ORDERS))
            await asyncio.sleep(0.5)
            world.place_s = 1e6
            pool.add()
            assert pool._slots.least_needed() == 3, "it waits for its place"
            await pool.retire(3)
            assert pool._slots.least_needed() == 1
            pool.resize(1, handover_s=30.0)
            await playing
            await asyncio.sleep(1.0)
            assert (pool.size, world.engines[1].released) == (1, True)

    in_virtual_time(go())


def test_what_the_engines_have_to_do_is_counted() -> None:
    async def go() -> None:
        world = busy_world(place_s=0.0)
        async with pool_of(world, 2, places=4) as pool:
            playing = asyncio.gather(*map(pool.play, ORDERS))
            await asyncio.sleep(0.5)
            world.place_s = 1e6
            pool.resize(3, handover_s=30.0)
            await asyncio.sleep(2.0)
            found = pool.occupancy
            assert (found.serving, found.joining, found.playing, found.queued) == (2, 1, 8, 4)
            assert 0 < found.sampling <= 8
            await playing

    in_virtual_time(go())


def test_engines_of_a_node_that_leaves_are_replaced_at_once_and_hand_over_before_it_goes() -> None:
    async def go() -> None:
        expected = await undisturbed()
        world = busy_world(tools=FakeTools(seconds=20.0), nodes=deque(["going", "going", "staying"]))
        notices: dict[str, float] = {}

        def look() -> Mapping[str, float]:
            return dict(notices)

        said: list[str] = []
        async with pool_of(world, 3) as pool:
            heeding = asyncio.ensure_future(heed(pool, 30.0, said.append, look))
            playing = asyncio.gather(*map(pool.play, ORDERS))
            await asyncio.sleep(0.5)
            notices["going"] = MARGIN_S + 15.0
            await asyncio.sleep(LOOK_EVERY_S + 0.1)
            assert (pool.size, len(pool.states)) == (3, 5), "two are on their way, two still play"
            began = NOW()
            await asyncio.sleep(6.0)
            assert [engine.released for engine in world.engines] == [False] * 5
            await pool._changes.wait_for(lambda: all(engine.released for engine in world.engines[:2]))
            assert NOW() - began < 15.0
            assert tokens_of(await playing) == expected
            assert once_each(world)
            assert (len(pool.states), pool.restarts) == (3, 0)
            assert said == ["node going is about to be shut down: 2 rollout engines replaced"]
            heeding.cancel()

    in_virtual_time(go())


def test_a_node_without_a_deadline_keeps_its_engines_for_the_usual_time() -> None:
    async def go() -> None:
        world = busy_world(tools=FakeTools(seconds=1e4), nodes=deque(["going"]))
        async with pool_of(world, 1) as pool:
            playing = asyncio.ensure_future(pool.play(ORDERS[0]))
            await asyncio.sleep(0.5)
            heeding = asyncio.ensure_future(heed(pool, 30.0, print, lambda: {"going": math.inf}))
            await asyncio.sleep(29.0)
            assert not world.engines[0].released
            await asyncio.sleep(2.0)
            assert world.engines[0].released
            await asyncio.sleep(1.0)
            assert len(world.engines[1].started) == 1
            heeding.cancel()
            playing.cancel()

    in_virtual_time(go())


def test_a_pool_that_stops_waits_for_nobody_who_leaves() -> None:
    async def go() -> None:
        world = busy_world(tools=FakeTools(seconds=1e4))
        pool: EnginePool
        async with pool_of(world, 2) as pool:
            playing = [asyncio.ensure_future(pool.play(order)) for order in ORDERS]
            await asyncio.sleep(0.5)
            pool.resize(1, handover_s=1e5)
            began = NOW()
        assert NOW() - began < 1.0
        for one in playing:
            one.cancel()

    in_virtual_time(go())
