"""What engines of a pool run, whatever happens to their syncs, in virtual time."""

import asyncio
import random

import pytest
from ray.exceptions import (
    ActorDiedError,
    OutOfMemoryError,
    RayTaskError,
)

from cluster.health import FINAL, HealthConfig, PoolConfig, State
from coa.errors import InfrastructureError, NoEngine, SyncError, WeightsGone, WeightsLost
from tests.support.engines import FakeWorld, order_of, publication
from tests.support.pools import pool_of, tokens_of, undisturbed
from tests.support.virtual_time import in_virtual_time


def test_every_engine_takes_the_newest_weights_and_so_does_one_that_joins() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            assert [report.version for report in await pool.sync(publication(1, "weights"))] == [1, 1]
            pool.add()
            await asyncio.sleep(20.0)
            assert [engine.loaded for engine in world.engines] == [[1], [1], [1]]
            assert len(await pool.sync(publication(2))) == 3
            # Learners that go back make a version again.
            assert [report.version for report in await pool.sync(publication(1))] == [1, 1, 1]
            assert world.engines[0].loaded == [1, 2, 1]

    in_virtual_time(go())


def test_engines_sleep_once_nothing_is_played_and_serve_again_with_the_next_weights() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            await pool.sync(publication(1))
            playing = [asyncio.ensure_future(pool.play(order_of(number, group=number))) for number in range(8)]
            await asyncio.sleep(1.0)
            sleeping = asyncio.ensure_future(pool.sleep())
            await asyncio.sleep(0.1)
            assert not any(engine.asleep for engine in world.engines), "episodes are under way"
            late = asyncio.ensure_future(pool.play(order_of(9, group=9)))
            await sleeping
            assert all(one.done() for one in playing)
            assert [engine.slept for engine in world.engines] == [[0], [0]]
            await asyncio.sleep(100.0)
            assert not late.done()
            assert set(pool.states.values()) == {State.HEALTHY}, "who sleeps is not taken for stuck"
            await pool.sync(publication(2))
            assert tokens_of([await late]) == await undisturbed([order_of(9, group=9)])
            assert pool.restarts == 0
            await pool.sleep()
            world.engines[0].die()
            await asyncio.sleep(100.0)
            assert len(world.engines) == 2, "learners have the memory that another one would take"
            await pool.sync(publication(3))
            await asyncio.sleep(30.0)
            assert pool.up == 2
            assert len(world.engines) == 3
            world.engines[1].die()
            await asyncio.sleep(3.0)
            assert State.STARTING in pool.states.values()
            await pool.sleep()
            assert State.STARTING not in pool.states.values(), "it has come up before"

    in_virtual_time(go())


def test_an_engine_that_finds_its_place_while_the_others_sleep_is_not_started_then() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            await pool.sync(publication(1))
            world.place_s = 50.0
            world.engines[0].die()
            await asyncio.sleep(10.0)
            await pool.sleep()
            await asyncio.sleep(100.0)
            *_, late = world.engines
            assert late.killed.done(), "learners have the memory that it would take"
            assert late.loaded == []
            await pool.sync(publication(2))
            await asyncio.sleep(100.0)
            assert pool.up == 2
            assert [engine.loaded for engine in world.alive] == [[1, 2], [2]]

    in_virtual_time(go())


@pytest.mark.parametrize(
    ("faults", "loaded", "restarts"),
    [
        ([SyncError("another digest")], [[1], [1]], 0),
        ([SyncError("another digest")] * 2, [[], [1], [1]], 1),
        ([WeightsGone("cut off")], [[1], [1]], 0),
        ([WeightsGone("cut off"), SyncError("again")], [[], [1], [1]], 1),
        ([RayTaskError("sync", "", RuntimeError("of vLLM"))], [[1], [1]], 0),
        ([ActorDiedError()], [[], [1], [1]], 1),
        ([OutOfMemoryError("low on memory")], [[], [1], [1]], 1),
    ],
)
def test_one_that_fails_to_load_is_brought_there_or_replaced_and_its_episodes_go_on(
    faults: list[Exception], loaded: list[list[int]], restarts: int
) -> None:
    orders = [order_of(number, group=number) for number in range(8)]

    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            playing = asyncio.gather(*map(pool.play, orders))
            await asyncio.sleep(1.0)
            world.engines[0].sync_faults.extend(faults)
            reports = await pool.sync(publication(1))
            assert [report.version for report in reports] == [1]
            assert pool.states[0] is not State.HEALTHY
            assert tokens_of(await playing) == await undisturbed(orders)
            await asyncio.sleep(20.0)
            assert [engine.loaded for engine in world.engines] == loaded
            assert (pool.restarts, set(pool.states.values())) == (restarts, {State.HEALTHY})

    in_virtual_time(go())


def test_what_vllm_calls_a_dead_engine_is_one() -> None:
    class EngineDeadError(InfrastructureError):
        """Stands for vLLM's."""

    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            world.engines[0].sync_faults.append(EngineDeadError("core"))
            assert await pool.sync(publication(1)) == []
            await pool.play(order_of())
            assert [engine.loaded for engine in world.engines] == [[], [1]]

    in_virtual_time(go())


def test_weights_that_are_lost_are_waited_for() -> None:
    """The learners have died with them, and tell again when they are back."""

    async def go() -> None:
        world = FakeWorld(always_at_sync=WeightsLost("with their node"))
        async with pool_of(world, 1) as pool:
            playing = asyncio.ensure_future(pool.play(order_of()))
            await asyncio.sleep(1.0)
            assert await pool.sync(publication(5)) == []
            assert (await playing).trajectory.versions.max() == 0, "what was begun goes on"
            world.engines[0].die()
            await asyncio.sleep(300.0)
            assert pool.states == {0: State.STALE}
            waiting = asyncio.ensure_future(pool.play(order_of(1)))
            await asyncio.sleep(300.0)
            assert not waiting.done()
            world.always_at_sync = None
            assert [report.version for report in await pool.sync(publication(3))] == [3]
            assert set((await waiting).trajectory.versions.tolist()) == {-1, 3}
            assert (len(world.engines), pool.restarts) == (2, 1)

    in_virtual_time(go())


def test_weights_that_no_engine_takes_end_in_a_typed_error() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            world.always_at_sync = SyncError("lm_head is not the learner's")
            await pool.sync(publication(1))
            with pytest.raises(NoEngine, match=r"in 3 tries: .*SyncError.*lm_head is not the learner's"):
                await pool.play(order_of())

    in_virtual_time(go())


@pytest.mark.parametrize("seed", range(5))
def test_no_token_is_older_than_the_weights_that_were_live_when_its_episode_was_admitted(seed: int) -> None:
    """Whatever dies, stands still or fails to load meanwhile."""

    async def go() -> None:
        dice = random.Random(seed)
        world = FakeWorld(start_s=2.0)
        limits = HealthConfig(suspect_s=3.0, dead_s=8.0)
        async with pool_of(world, 3, config=PoolConfig(health=limits, deaths=1000)) as pool:
            live = 0

            async def one(number: int) -> None:
                await asyncio.sleep(dice.uniform(0, 100))
                admitted = live
                result = await pool.play(order_of(number, group=number))
                versions = result.trajectory.versions[result.trajectory.action_mask]
                assert versions.min() >= admitted

            playing = asyncio.gather(*(one(number) for number in range(150)))
            while not playing.done():
                await asyncio.sleep(dice.expovariate(0.5))
                match dice.randrange(6), dice.choice(world.alive):
                    case 0, engine:
                        engine.die()
                    case 1, engine:
                        engine.stop_core()
                    case 2, engine:
                        engine.stop_actor()
                    case 3, _:
                        world.sync_faults.append(dice.choice([SyncError("x"), WeightsGone("x"), None]))
                    case _:
                        await pool.sync(publication(live + 1))
                        live += 1
            await playing
            assert live > 5
            assert not set(pool.states.values()) & set(FINAL) or pool.restarts

    in_virtual_time(go())
