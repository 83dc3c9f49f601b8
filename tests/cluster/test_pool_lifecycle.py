"""Engines of a pool that are started, replaced, drained and given up, in virtual time."""

import asyncio
from collections.abc import Sequence

import pytest
from ray.exceptions import (
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    RaySystemError,
    RayTaskError,
)

from actors.messages import Order
from cluster.engine_actor import Engine, fault_of, why_of
from cluster.health import Fault, HealthConfig, PoolConfig, State
from cluster.pool import OTHERS_S
from coa.errors import EngineDied, NoEngine, SyncError, WeightsGone, WeightsLost
from tests.support.engines import FakeTools, FakeWorld, order_of
from tests.support.pools import NOW, SAID, pool_of
from tests.support.virtual_time import in_virtual_time


def test_starts_that_fail_are_tried_again() -> None:
    async def go() -> None:
        world = FakeWorld(failing_starts=2)
        async with pool_of(world, 1) as pool:
            await pool.play(order_of())
            assert (len(world.engines), pool.restarts) == (3, 0)
            assert [said.startswith("rollout engine 0 did not start: ActorDiedError") for said in SAID] == [True] * 2

    in_virtual_time(go())


def test_a_start_that_always_fails_ends_in_a_typed_error() -> None:
    async def go() -> None:
        world = FakeWorld(failing_starts=99)
        with pytest.raises(NoEngine, match="in 3 tries: ActorDiedError"):
            async with pool_of(world, 1):
                pass

    in_virtual_time(go())


def test_a_start_that_shows_progress_is_waited_for_beyond_its_time() -> None:
    async def go() -> None:
        health = HealthConfig(start_s=100.0)
        world = FakeWorld(start_s=700.0, signs=lambda: int(NOW()))
        async with pool_of(world, 1, config=PoolConfig(health=health)) as pool:
            await pool.play(order_of())
            assert len(world.engines) == 1
        world = FakeWorld(start_s=700.0)
        with pytest.raises(NoEngine, match="its start showed no progress for 100 s"):
            async with pool_of(world, 1, config=PoolConfig(health=health)):
                pass

    in_virtual_time(go())


def test_engines_of_a_slow_machine_are_left_alone_until_they_stand_still() -> None:
    """A token takes 40 s, more than an engine of a fast machine has."""

    async def go() -> None:
        world = FakeWorld(token_s=40.0, calls_of=lambda episode: 0)
        async with pool_of(world, 1) as pool:
            await asyncio.gather(*(pool.play(order_of(number)) for number in range(2)))
            assert (len(world.engines), SAID) == (1, [])
            again = asyncio.ensure_future(pool.play(order_of(2)))
            await asyncio.sleep(100.0)
            world.engines[0].stop_core()
            began = NOW()
            await again
            [line] = SAID
            assert line.startswith("rollout engine 0 died: no token for 16")
            assert NOW() - began > 120

    in_virtual_time(go(), limit_s=1e5)


def test_one_without_a_place_holds_nobody_up_who_has_another() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1, config=PoolConfig(place_s=10.0)) as pool:
            world.place_s = 1e9
            pool.add()
            await asyncio.sleep(500.0)
            await pool.play(order_of())
            assert set(SAID) == {"rollout engine 1 did not start: there was no place for it within 10 s"}
            world.place_s = 0.0
            await asyncio.sleep(100.0)
            assert pool.states == {0: State.HEALTHY, 1: State.HEALTHY}

    in_virtual_time(go())


@pytest.mark.parametrize(("later_s", "waited_s"), [(20.0, 20.0), (500.0, OTHERS_S)])
def test_what_is_asked_first_is_dealt_to_engines_that_come_up_together(later_s: float, waited_s: float) -> None:
    async def go() -> None:
        world = FakeWorld(start_s=1.0)
        async with pool_of(world, 1) as pool:
            world.start_s = later_s
            pool.add()
            began = NOW()
            await pool.ready()
            assert NOW() - began == pytest.approx(waited_s, abs=1.0)
            playing = [asyncio.ensure_future(pool.play(order_of(number))) for number in range(4)]
            await asyncio.sleep(0.1)
            assert [len(engine.started) for engine in world.engines] == ([2, 2] if later_s == waited_s else [4, 0])
            await asyncio.gather(*playing)

    in_virtual_time(go())


def test_a_drained_engine_ends_its_episodes_and_a_retired_one_hands_them_on() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 6)
        orders = [order_of(number, group=number) for number in range(3)]
        async with pool_of(world, 3) as pool:
            playing = asyncio.gather(*map(pool.play, orders))
            await asyncio.sleep(1.0)
            draining = asyncio.ensure_future(pool.drain(0))
            await pool.retire(1)
            await pool.play(order_of(7))
            await asyncio.gather(draining, playing)
            await asyncio.sleep(1.0)
            first, second, third = world.engines
            assert (len(first.started), len(first.acknowledged)) == (1, 1)
            assert (len(second.started), len(second.acknowledged)) == (1, 0)
            assert len(third.acknowledged) == 3
            assert pool.states == {2: State.HEALTHY}
            pool.replace(2)
            await pool.play(order_of(8))
            assert (len(world.engines), third.killed.done(), pool.restarts) == (4, True, 1)

    in_virtual_time(go())


def test_an_engine_that_is_replaced_on_purpose_is_no_death_of_its_episodes() -> None:
    async def go() -> None:
        world = FakeWorld(tools=FakeTools(seconds=1e5))
        async with pool_of(world, 1, config=PoolConfig(deaths=2)) as pool:
            playing = asyncio.ensure_future(pool.play(order_of()))
            for _ in range(4):
                await asyncio.sleep(20.0)
                pool.replace(0)
            pool.add()
            await asyncio.sleep(20.0)
            await pool.retire(0)
            await asyncio.sleep(20.0)
            assert (len(world.engines), pool.moves) == (6, 5)
            assert not playing.done()
            playing.cancel()

    in_virtual_time(go())


def test_an_engine_that_serves_and_dies_at_once_is_started_at_growing_intervals_and_given_up() -> None:
    """After as many starts as engines may die under an episode, and one more: it was not the episode."""

    async def go() -> None:
        world = FakeWorld(start_s=1.0)
        async with pool_of(world, 1, config=PoolConfig(deaths=5)) as pool:
            began = NOW()
            for _ in range(6):
                await pool.ready()
                world.alive[0].die()
                await asyncio.sleep(0.1)
            assert 15.5 + 5 < NOW() - began < 15.5 + 8
            with pytest.raises(NoEngine, match="in 6 tries: ActorDiedError"):
                await pool.play(order_of())
            assert len(world.engines) == 6

    in_virtual_time(go())


def test_an_engine_that_has_done_something_is_replaced_at_once() -> None:
    async def go() -> None:
        world = FakeWorld(start_s=1.0)
        async with pool_of(world, 1, config=PoolConfig(deaths=2, starts=2)) as pool:
            for number in range(6):
                await pool.play(order_of(number))
                world.alive[0].die()
                await asyncio.sleep(1.1)
            assert (len(world.engines), pool.restarts, pool.states) == (7, 6, {0: State.HEALTHY})

    in_virtual_time(go())


def test_an_engine_that_the_cluster_does_not_launch_is_asked_for_again() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            launch, failures = pool._slots._launch, iter([RaySystemError("the head is busy")] * 2)

            async def failing(incarnation: str) -> Engine:
                if (error := next(failures, None)) is not None:
                    raise error
                return await launch(incarnation)

            pool._slots._launch = failing
            world.engines[0].die()
            await pool.play(order_of())
            assert sum("did not start: RaySystemError" in said for said in SAID) == 2

    in_virtual_time(go())


def test_an_engine_that_can_not_be_ended_hands_its_episodes_on() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            [engine] = world.engines
            playing = asyncio.ensure_future(pool.play(order_of()))
            await asyncio.sleep(1.0)

            def kill() -> None:
                engine.released = True
                raise RaySystemError("the head is busy")

            engine.kill = kill
            engine.stop_actor()
            await playing
            assert len(world.engines) == 2

    in_virtual_time(go())


def test_a_defect_in_what_goes_on_beside_is_raised_too() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:

            async def start(orders: Sequence[Order], heard: int) -> None:
                raise TypeError("it can not be pickled")

            world.engines[0].start = start
            with pytest.raises(TypeError, match="pickled"):
                await pool.play(order_of())

    in_virtual_time(go())


@pytest.mark.parametrize(
    ("error", "fault"),
    [
        (OutOfDiskError("no space left"), Fault.GONE),
        (ObjectStoreFullError("full"), Fault.GONE),
        (GetTimeoutError("late"), Fault.GONE),
        (RaySystemError("the head is busy"), Fault.GONE),
        (NodeDiedError("node"), Fault.GONE),
        (ActorUnavailableError("?", None), Fault.UNREACHABLE),
        (ObjectLostError("x", None, ""), Fault.NO_WEIGHTS),
        (RayTaskError("sync", "", EngineDied("its core gave no answer")), Fault.GONE),
        (RayTaskError("sync", "", SyncError("another digest")), Fault.REFUSED),
        (RayTaskError("sync", "", WeightsLost("with their node")), Fault.NO_WEIGHTS),
        (RayTaskError("events", "", TypeError("a defect")), None),
        (TypeError("a defect"), None),
    ],
)
def test_what_ray_raises_of_itself_is_the_engines_end_and_a_defect_in_it_is_none(
    error: Exception, fault: Fault | None
) -> None:
    assert fault_of(error) is fault


def test_what_an_engine_raised_is_named_and_not_where() -> None:
    error = RayTaskError("sync", "ray::sync()\n  File", WeightsGone("WrongVersion: worker 0 runs version 1"))
    assert why_of(error) == "WeightsGone: WrongVersion: worker 0 runs version 1"


def test_a_defect_is_raised_to_whoever_plays() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:

            async def events(after: int, wait_s: float) -> None:
                raise RayTaskError("events", "TypeError: a defect", TypeError("a defect")).as_instanceof_cause()

            world.engines[0].events = events  # pyright: ignore[reportAttributeAccessIssue]
            await asyncio.sleep(5.0)
            with pytest.raises(TypeError, match="a defect"):
                await pool.play(order_of())

    in_virtual_time(go())
