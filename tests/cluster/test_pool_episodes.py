"""Episodes of a pool whose engines are killed, in virtual time."""

import asyncio
import itertools
import random

import pytest
from ray.exceptions import (
    ActorDiedError,
    OutOfMemoryError,
)

from actors.messages import CacheStats
from actors.rollout.config import SamplingConfig
from cluster.health import PoolConfig
from cluster.pool import EnginePool
from coa.errors import EpisodeFailed
from coa.planning.admission import Load
from coa.types import Scored
from tests.support.engines import FakeTools, FakeWorld, a_task, order_of, publication
from tests.support.pools import NOW, pool_of, tokens_of, undisturbed
from tests.support.virtual_time import in_virtual_time


def test_each_episode_goes_to_the_engine_with_the_least_to_do() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 3) as pool:
            await asyncio.gather(*(pool.play(order_of(group=0, sample=sample)) for sample in range(9)))
            assert [len(engine.started) for engine in world.engines] == [3, 3, 3]
            assert [engine.starts for engine in world.engines] == [1, 1, 1], "orders of a moment travel together"
            await asyncio.sleep(1.0)
            acknowledged = [one for engine in world.engines for one in engine.acknowledged]
            assert len(set(acknowledged)) == len(acknowledged) == 9

    in_virtual_time(go())


def test_an_engine_is_known_by_the_tokens_that_its_episodes_have_come_to() -> None:
    """Counted along: as they speak, as they end, as they come from an engine that died, and as they are given up."""

    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 4, tools=FakeTools(seconds=2.0))
        async with pool_of(world, 2) as pool:
            playing = [asyncio.ensure_future(pool.play(order_of(number, group=number))) for number in range(8)]
            seen = 0
            for moment in range(60):
                await asyncio.sleep(0.5)
                if moment == 8:
                    world.engines[0].die()
                if moment == 12:
                    playing[0].cancel()
                for replica in pool._slots.replicas().values():
                    episodes = replica.episodes
                    tokens = sum(one.episode.tokens for one in episodes._playing.values())
                    assert episodes.load == Load(tokens, len(episodes._playing))
                    seen = max(seen, tokens)
            ended = await asyncio.gather(*playing, return_exceptions=True)
            assert sum(isinstance(one, Scored) for one in ended) == 7
            assert pool.moves > 0
            assert seen > 20
            assert {replica.episodes.load for replica in pool._slots.replicas().values()} == {(0, 0)}

    in_virtual_time(go())


def test_two_long_episodes_are_more_to_do_than_three_short_ones() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda one: 60 if one.group < 4 else 2, tools=FakeTools(seconds=1.0), token_s=0.01)
        async with pool_of(world, 2) as pool:
            second = world.engines[1]
            playing = [asyncio.ensure_future(pool.play(order_of(n, group=n))) for n in range(4)]
            await asyncio.gather(*(pool.play(order_of(n, group=n)) for n in range(100, 110)))
            for one in [order.id.group for order in second.started if order.id.group < 4]:
                playing[one].cancel()
            await asyncio.sleep(5.0)
            begun = [len(engine.started) for engine in world.engines]
            playing += [asyncio.ensure_future(pool.play(order_of(n, group=n))) for n in range(200, 204)]
            await asyncio.sleep(0.1)
            assert [len(engine.started) - before for engine, before in zip(world.engines, begun, strict=True)] == [0, 4]
            for one in playing:
                one.cancel()

    in_virtual_time(go())


def test_what_is_beyond_the_places_of_the_first_engine_goes_to_those_that_come_up_later() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 6, tools=FakeTools(seconds=20.0))
        async with pool_of(world, 1, places=4) as pool:
            playing = asyncio.gather(*(pool.play(order_of(number, group=number)) for number in range(12)))
            pool.add()
            await asyncio.sleep(0.1)
            assert [len(engine.started) for engine in world.engines] == [4, 0]
            await asyncio.sleep(5.1)
            assert [len(engine.started) for engine in world.engines] == [4, 4]
            assert [order.id.group for engine in world.engines for order in engine.started] == list(range(8))
            await playing
            assert {order.id.group for engine in world.engines for order in engine.started} == set(range(12))

    in_virtual_time(go())


def test_an_engine_that_preempts_is_given_fewer_episodes_until_it_preempts_no_more() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 2, tools=FakeTools(seconds=1.0))
        async with pool_of(world, 1, places=20) as pool:
            [engine] = world.engines
            playing = asyncio.gather(*(pool.play(order_of(n, group=n)) for n in range(400)))
            await asyncio.sleep(0.5)
            engine.cache, engine.kv_use = CacheStats(preemptions=4, prefill=100, recomputed=40), 1.5
            held: list[int] = []
            while not playing.done():
                held.append(pool.occupancy.playing)
                if len(held) == 3:
                    assert pool.occupancy.cache == engine.cache
                    engine.kv_use = 0.5
                await asyncio.sleep(1.0)
            assert held[0] == 20
            assert min(held[: len(held) // 2]) == 18
            assert held[len(held) // 2] == 20, "its limit grows again"
            assert [order.id.group for order in engine.started] == list(range(400)), "the order stays"
            engine.die()
            await asyncio.sleep(7.0)
            assert pool.occupancy.cache == engine.cache, "what it counted stays"

    in_virtual_time(go())


def test_the_wait_for_a_place_costs_an_episode_none_of_its_time() -> None:
    """A dozen episodes of some ten seconds each, one after another, each of which may take twenty."""

    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 4, token_s=0.02, tools=FakeTools(seconds=4.0))
        async with pool_of(world, 1, places=1) as pool:
            began = NOW()
            orders = [order_of(number, group=number, limit_s=20.0) for number in range(12)]
            assert len(await asyncio.gather(*map(pool.play, orders))) == 12
            assert NOW() - began > 60.0
            assert {order.limit_s for order in world.engines[0].started} == {20.0}

    in_virtual_time(go())


def test_episodes_of_a_dead_engine_go_before_younger_ones_that_wait() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 6, tools=FakeTools(seconds=20.0))
        async with pool_of(world, 1, places=2) as pool:
            playing = asyncio.gather(*(pool.play(order_of(number, group=number)) for number in range(5)))
            await asyncio.sleep(1.0)
            world.engines[0].die()
            await asyncio.sleep(7.0)
            assert [order.id.group for order in world.engines[1].started[:2]] == [0, 1]
            await playing

    in_virtual_time(go())


def test_an_evaluation_neither_starves_nor_goes_before_the_training_that_was_there() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 1)
        async with pool_of(world, 1, places=1) as pool:
            training = [asyncio.ensure_future(pool.play(order_of(number, group=number))) for number in range(3)]
            await asyncio.sleep(0.1)
            evaluation = asyncio.ensure_future(pool.evaluate(a_task(99), range(1), SamplingConfig()))
            await asyncio.sleep(0.1)
            training += [asyncio.ensure_future(pool.play(order_of(number, group=number))) for number in range(3, 6)]
            await evaluation
            await asyncio.gather(*training)
            assert [order.id.group for order in world.engines[0].started] == [0, 1, 2, -1, 3, 4, 5]

    in_virtual_time(go())


def test_episodes_that_waited_for_an_engine_are_started_in_one_call() -> None:
    """They take its places one after the other."""

    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 6, tools=FakeTools(seconds=20.0))
        async with pool_of(world, 1, places=8) as pool:
            playing = asyncio.gather(*(pool.play(order_of(0, group=group)) for group in range(8)))
            await asyncio.sleep(1.0)
            world.engines[0].die()
            await playing
            assert len(world.engines[1].started) == 8
            assert world.engines[1].starts == 1

    in_virtual_time(go())


def test_an_episode_that_is_cancelled_before_its_order_is_sent_is_never_started() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            [engine] = world.engines
            playing = [asyncio.ensure_future(pool.play(order_of(sample=sample))) for sample in range(2)]
            await asyncio.sleep(0)
            assert pool._slots.replicas()[0].episodes.load.episodes == 2
            playing[0].cancel()
            await playing[1]
            assert [order.id.sample for order in engine.started] == [1]
            assert engine.cancelled == []

    in_virtual_time(go())


@pytest.mark.parametrize("seed", range(3))
def test_two_hundred_kills_lose_no_finished_turn_and_complete_no_tool_call_twice(seed: int) -> None:
    """Engines are killed at random moments, half of the tool calls under way with them, for as long as 24 episodes are
    played at a time. (No turn is sampled again that the driver has: the engines look after that.)"""

    async def go() -> None:
        dice = random.Random(seed)
        world = FakeWorld(tools=FakeTools(seconds=4.0), start_s=1.0, token_s=0.03)
        played: dict[int, Scored] = {}
        numbers, kills = itertools.count(), 0

        async def play_on(pool: EnginePool) -> None:
            while kills < 200:
                number = next(numbers)
                played[number] = await pool.play(order_of(number, group=number))

        async with pool_of(world, 4, config=PoolConfig(deaths=1000)) as pool:
            playing = [asyncio.ensure_future(play_on(pool)) for _ in range(24)]
            while kills < 200:
                await asyncio.sleep(dice.expovariate(1.0))
                if alive := [engine for engine in world.alive if engine.started]:
                    dice.choice(alive).die(dice.choice([ActorDiedError(), OutOfMemoryError("low on memory")]))
                    kills += 1
            await asyncio.gather(*playing)
            assert pool.restarts >= 190
            assert pool.moves > 500
        tools = world.tools
        assert set(tools.completed.values()) == {1}
        assert sum(tools.cut_off.values()) > 100
        for call, times in tools.started.items():
            assert times <= 1 + tools.cut_off[call]
        # And all of it is the same as if nothing had happened.
        assert len(played) > 100
        numbers_played = sorted(played)
        orders = [order_of(number, group=number) for number in numbers_played]
        assert tokens_of([played[number] for number in numbers_played]) == await undisturbed(orders)

    in_virtual_time(go())


def test_an_episode_under_which_engines_die_again_and_again_fails_for_good() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 0)
        async with pool_of(world, 1, config=PoolConfig(deaths=3)) as pool:
            playing = asyncio.ensure_future(pool.play(order_of()))
            for _ in range(3):
                await asyncio.sleep(0.3)
                world.engines[-1].die()
                await asyncio.sleep(6.0)
            with pytest.raises(EpisodeFailed, match="EngineDied: ActorDiedError") as caught:
                await playing
            assert (caught.value.where, caught.value.tokens, caught.value.tool_calls) == ("EngineDied", 0, 0)

    in_virtual_time(go())


def test_a_failure_says_how_far_the_episode_had_come() -> None:
    async def go() -> None:
        world = FakeWorld(tools=FakeTools(down=lambda episode: episode.sample == 1), calls_of=lambda episode: 2)
        async with pool_of(world) as pool:
            fine, failed = await asyncio.gather(
                *(pool.play(order_of(sample=sample)) for sample in range(2)), return_exceptions=True
            )
            assert isinstance(fine, Scored)
            assert isinstance(failed, EpisodeFailed)
            assert (failed.where, failed.tool_calls) == ("ToolDown", 1)
            assert failed.tokens > 5
            assert pool.retried == 3

    in_virtual_time(go())


def test_an_episode_that_is_cancelled_ends_on_its_engine_and_may_be_played_again() -> None:
    async def go() -> None:
        [expected] = await undisturbed([order_of()])
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            for waits in (0.0, 0.0005, 0.5, 3.0):
                playing = asyncio.ensure_future(pool.play(order_of()))
                await asyncio.sleep(waits)
                playing.cancel()
                [again] = tokens_of([await pool.play(order_of())])
                assert again == expected
            await asyncio.sleep(1.0)
            [engine] = world.engines
            assert len(engine.cancelled) >= 2
            assert engine.acknowledged == [order_of().id] * 4

    in_virtual_time(go())


def test_a_moved_episode_has_the_time_that_is_left_of_it() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 6, token_s=0.02, tools=FakeTools(seconds=9.0))
        async with pool_of(world, 1) as pool:
            playing = asyncio.ensure_future(pool.play(order_of(limit_s=10.0)))
            await asyncio.sleep(1.0)
            await pool.sync(publication(1))  # half a second that does not count
            await asyncio.sleep(1.0)
            world.engines[0].die()
            await asyncio.sleep(6.0)  # nor does the start of another engine
            [order] = world.engines[1].started
            assert order.limit_s == pytest.approx(8.0, abs=0.1)
            assert order.journal
            await asyncio.sleep(9.0)
            world.engines[1].die()
            with pytest.raises(EpisodeFailed, match="EpisodeTimeout: 10 s were not enough"):
                await playing

    in_virtual_time(go())


def test_the_time_of_a_sync_in_which_the_engine_goes_on_counts() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 6, token_s=0.02, tools=FakeTools(seconds=90.0))
        async with pool_of(world, 1) as pool:
            playing = asyncio.ensure_future(pool.play(order_of(limit_s=20.0)))
            await asyncio.sleep(1.0)
            world.engines[0].stop_core()
            syncing = asyncio.ensure_future(pool.sync(publication(1)))
            await asyncio.sleep(2.0)
            world.engines[0].wake()
            await syncing  # half a second of it is a pause
            await asyncio.sleep(1.0)
            world.engines[0].die()
            await asyncio.sleep(6.0)
            [order] = world.engines[1].started
            assert order.limit_s == pytest.approx(16.0, abs=0.1)
            playing.cancel()

    in_virtual_time(go())


def test_the_time_of_a_sync_in_which_the_engine_dies_does_not_count() -> None:
    async def go() -> None:
        world = FakeWorld(calls_of=lambda episode: 6, token_s=0.02, tools=FakeTools(seconds=90.0), sync_s=5.0)
        async with pool_of(world, 1) as pool:
            playing = asyncio.ensure_future(pool.play(order_of(limit_s=20.0)))
            await asyncio.sleep(1.0)
            syncing = asyncio.ensure_future(pool.sync(publication(1)))
            await asyncio.sleep(3.0)
            world.engines[0].die()
            await asyncio.sleep(11.0)
            [order] = world.engines[1].started
            assert order.limit_s == pytest.approx(19.0, abs=0.1)
            await syncing
            playing.cancel()

    in_virtual_time(go())
