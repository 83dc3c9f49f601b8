"""The pool on engines that are killed, stopped and made to fail, in virtual time."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    NodeDiedError,
    ObjectLostError,
    ObjectStoreFullError,
    OutOfDiskError,
    OutOfMemoryError,
    RaySystemError,
    RayTaskError,
)

from actors.messages import EVALUATION, EpisodeId, EpisodeOrder
from actors.rollout.config import SamplingConfig
from cluster.engine_actor import Engine, fault_of
from cluster.flights import Flight
from cluster.health import FINAL, Fault, HealthConfig, PoolConfig, State
from cluster.pool import EnginePool
from coa.errors import EngineDied, EpisodeFailed, InfrastructureError, NoEngine, SyncError, WeightsGone
from coa.types import Scored
from tests.support.engines import AGENT, FakeEngine, FakeTools, FakeWorld, a_task, order_of
from tests.support.virtual_time import in_virtual_time, stand_still

NOW: Callable[[], float] = lambda: asyncio.get_running_loop().time()  # noqa: E731


@asynccontextmanager
async def pool_of(
    world: FakeWorld,
    engines: int = 2,
    *,
    places: int = 256,
    patience_s: float = 60.0,
    config: PoolConfig | None = None,
) -> AsyncIterator[EnginePool]:
    pool = EnginePool(
        world.launch, config or PoolConfig(), AGENT, places=places, patience_s=patience_s, say=SAID.append
    )
    SAID.clear()
    for _ in range(engines):
        pool.add()
    try:
        await pool.ready()
        await asyncio.sleep(1)
        yield pool
    finally:
        await pool.stop()
        assert all(engine.released for engine in world.engines), "a pool leaves no engine behind"


SAID: list[str] = []
"""What the pool last told of its engines."""


def tokens_of(results: Sequence[Scored]) -> list[list[int]]:
    return [one.trajectory.token_ids.tolist() for one in results]


async def undisturbed(orders: Sequence) -> list[list[int]]:
    async with pool_of(FakeWorld(), 1) as pool:
        return tokens_of(await asyncio.gather(*map(pool.play, orders)))


# --- episodes ---------------------------------------------------------------------------------------------------------


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


def test_an_episode_that_is_cancelled_before_its_order_is_sent_is_never_started() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world, 1) as pool:
            [engine] = world.engines
            playing = [asyncio.ensure_future(pool.play(order_of(sample=sample))) for sample in range(2)]
            await asyncio.sleep(0)
            assert pool._slots.replicas()[0].flights.load[0] == 2
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
            await pool.sync(1)  # half a second that does not count
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
            syncing = asyncio.ensure_future(pool.sync(1))
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
            syncing = asyncio.ensure_future(pool.sync(1))
            await asyncio.sleep(3.0)
            world.engines[0].die()
            await asyncio.sleep(11.0)
            [order] = world.engines[1].started
            assert order.limit_s == pytest.approx(19.0, abs=0.1)
            await syncing
            playing.cancel()

    in_virtual_time(go())


# --- engines that stand still -----------------------------------------------------------------------------------------


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
            syncing = asyncio.ensure_future(pool.sync(1)) if syncs else None
            await asyncio.sleep(stopped + 60 - NOW())
            assert pool.states == {0: State.HEALTHY, 1: State.HEALTHY}
            [said] = SAID
            what = "no token for 3" if stop is FakeEngine.stop_core else "its actor gave no answer for 3"
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
            syncing = asyncio.ensure_future(pool.sync(1))
            await asyncio.sleep(3.0)
            world.engines[0].stop_core()
            stopped = NOW()
            assert [report.version for report in await syncing] == [1]
            assert NOW() - stopped < 35.0, "weights are live on the other engine"
            await asyncio.sleep(stopped + 60 - NOW())
            assert pool.states == {0: State.HEALTHY, 1: State.HEALTHY}
            assert SAID == [
                "rollout engine 0 died: its core did not go on within 30 s of its pause for new weights",
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
            assert [report.version for report in await pool.sync(1, large)] == [1, 1]
            world.sync_s = 80.0
            assert await pool.sync(2, large) == []
            await asyncio.sleep(1.0)
            assert {said.partition(": ")[2] for said in SAID} == {
                "its core did not go on within 70 s of its pause for new weights"
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
            syncing = asyncio.ensure_future(pool.sync(1)) if syncs else None
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


def replace_incarnation(engine: FakeEngine) -> Callable:
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


# --- weights ----------------------------------------------------------------------------------------------------------


def test_every_engine_takes_the_newest_weights_and_so_does_one_that_joins() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            assert [report.version for report in await pool.sync(1, "weights")] == [1, 1]
            pool.add()
            await asyncio.sleep(20.0)
            assert [engine.loaded for engine in world.engines] == [[1], [1], [1]]
            assert len(await pool.sync(2)) == 3
            # Learners that go back make a version again.
            assert [report.version for report in await pool.sync(1)] == [1, 1, 1]
            assert world.engines[0].loaded == [1, 2, 1]

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
            reports = await pool.sync(1)
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
            assert await pool.sync(1) == []
            await pool.play(order_of())
            assert [engine.loaded for engine in world.engines] == [[], [1]]

    in_virtual_time(go())


def test_weights_that_are_lost_are_waited_for() -> None:
    """The learners have died with them, and tell again when they are back."""

    async def go() -> None:
        world = FakeWorld(always_at_sync=ObjectLostError("x", None, ""))
        async with pool_of(world, 1) as pool:
            playing = asyncio.ensure_future(pool.play(order_of()))
            await asyncio.sleep(1.0)
            assert await pool.sync(5) == []
            assert (await playing).trajectory.versions.max() == 0, "what was begun goes on"
            world.engines[0].die()
            await asyncio.sleep(300.0)
            assert pool.states == {0: State.STALE}
            waiting = asyncio.ensure_future(pool.play(order_of(1)))
            await asyncio.sleep(300.0)
            assert not waiting.done()
            world.always_at_sync = None
            assert [report.version for report in await pool.sync(3)] == [3]
            assert set((await waiting).trajectory.versions.tolist()) == {-1, 3}
            assert (len(world.engines), pool.restarts) == (2, 1)

    in_virtual_time(go())


def test_weights_that_no_engine_takes_end_in_a_typed_error() -> None:
    async def go() -> None:
        world = FakeWorld()
        async with pool_of(world) as pool:
            world.always_at_sync = SyncError("lm_head is not the learner's")
            await pool.sync(1)
            with pytest.raises(NoEngine, match=r"in 3 tries: .*SyncError.*lm_head is not the learner's"):
                await pool.play(order_of())

    in_virtual_time(go())


# --- engines come and go ----------------------------------------------------------------------------------------------


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

            async def start(orders: Sequence[EpisodeOrder], heard: int) -> None:
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
        (RayTaskError("events", "", TypeError("a defect")), None),
        (TypeError("a defect"), None),
    ],
)
def test_what_ray_raises_of_itself_is_the_engines_end_and_a_defect_in_it_is_none(
    error: Exception, fault: Fault | None
) -> None:
    assert fault_of(error) is fault


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


# --- evaluation -------------------------------------------------------------------------------------------------------


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
    trained, evaluated = (Flight(order_of(group=group, limit_s=5.0), spent_s=7.0) for group in (0, EVALUATION))
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
            await pool.sync(1)
            await asyncio.sleep(1.0)
            world.engines[0].die()
            await asyncio.sleep(1.0)
            assert [report.spans for report in await pool.busy()] == [((0.0, 1.0),)] * 2
            await asyncio.sleep(20.0)
            assert [report.spans for report in await pool.busy()] == [((0.0, 1.0),) * 2, ((0.0, 1.0),)]

    in_virtual_time(go())


# --- freshness --------------------------------------------------------------------------------------------------------


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
                        await pool.sync(live + 1)
                        live += 1
            await playing
            assert live > 5
            assert not set(pool.states.values()) & set(FINAL) or pool.restarts

    in_virtual_time(go())
