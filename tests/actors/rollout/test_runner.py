"""Episodes on a scripted policy: events, retries, moves to another engine, time limits, and what ends when."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from actors.messages import Advanced, Ended, EpisodeId, EventLevel, Failed, Streamed, TurnOrder
from coa.agent.episode import Episode
from coa.agent.journal import Delta, Said
from coa.errors import EngineDied, ToolDown
from coa.tools.base import ToolCall
from coa.types import Scored, Trajectory
from tests.support.executors import Answering
from tests.support.fakes import tag_codec
from tests.support.policies import AGENT, Runner, order
from tests.support.runners import ANSWER, PLAN, SEARCH, SEARCHES, Saying, echo, journal_of, plain, trajectory


def test_each_step_is_an_event_and_the_result_is_kept_until_it_is_forgotten() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Saying(*SEARCHES))
        one, ungraded = order(), order(1, graded=False)
        assert await runner.play([one, ungraded]) == [Ended(id=one.id), Ended(id=ungraded.id)]
        kinds = [type(delta).__name__ for delta in journal_of(runner, one.id)]
        assert kinds == ["Said", "Observed", "Said"]
        scored, bare = (runner.runner.results[each.id] for each in (one, ungraded))
        assert isinstance(scored, Scored)
        assert (scored.correct, scored.reward) == (True, 1.0)
        assert isinstance(bare, Trajectory)
        resumed = Episode.resume(one.task, 0, journal_of(runner, one.id), codec=tag_codec(), agent=AGENT)
        assert plain(resumed.trajectory()) == plain(scored.trajectory)
        runner.runner.forget([one.id])
        assert list(runner.runner.results) == [ungraded.id]

    asyncio.run(go())


def test_an_episode_that_is_known_is_not_started_again() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo))
        runner.runner.start([order(), order()])
        runner.runner.start([order()])
        assert runner.running == 1
        await runner.until_ended(1)
        asked = len(runner.policy.seeds)
        runner.runner.start([order()])
        assert runner.running == 0
        runner.runner.forget([order().id])
        await asyncio.sleep(0)
        runner.runner.start([order()])
        await runner.until_ended(2)
        assert len(runner.policy.seeds) == 2 * asked

    asyncio.run(go())


def test_seeds_depend_on_task_group_sample_and_turn_and_not_on_the_attempt() -> None:
    async def seeds(*orders: Any, name: str = "engine") -> list[int]:
        runner = Runner(Answering(echo), policy=Saying(*SEARCHES), name=name)
        await runner.play(orders)
        return sorted(runner.policy.seeds)

    async def go() -> None:
        first = await seeds(order())
        assert len(set(first)) == 2
        assert await seeds(order(), name="another engine") == first
        others = [order(1), order(sample=1), order(group=1)]
        assert len(set(first).union(*[await seeds(each) for each in others])) == 8

    asyncio.run(go())


# --- moves ------------------------------------------------------------------------------------------------------------


class Cut:
    """The way to an executor, as long as the engine at its other end lives."""

    def __init__(self, executor: Any) -> None:
        self._executor, self.dead = executor, False

    def __getattr__(self, name: str) -> Any:
        async def ask(*arguments: Any) -> Any:
            if self.dead:
                raise ToolDown("the engine is dead")
            return await getattr(self._executor, name)(*arguments)

        return ask


def test_200_kills_complete_no_call_twice_and_change_no_token() -> None:
    """Engines die at random moments; the driver keeps the journal of what it has read."""
    made: Counter[ToolCall] = Counter()

    async def slow(call: ToolCall) -> str:
        for _ in range(random.Random(call.argument).randrange(40)):
            await asyncio.sleep(0)
        made[call] += 1
        return f"{call.argument}!"

    async def undisturbed() -> dict[Any, Any]:
        runner = Runner(Answering(slow))
        orders = [order(i) for i in range(40)]
        await runner.play(orders)
        return {each.id: plain(trajectory(runner.runner.results[each.id])) for each in orders}

    async def killed() -> tuple[dict[Any, Any], int, int]:
        executor, rng = Answering(slow), random.Random(0)
        unfinished = {order(i).id: order(i) for i in range(40)}
        journals: dict[Any, list[Delta]] = {id: [] for id in unfinished}
        found: dict[Any, Any] = {}
        kills = moved = 0
        while unfinished:
            cut: Any = Cut(executor)
            engine = Runner(cut, name=f"engine {kills}")
            moved += sum(len(journals[id]) > 0 for id in unfinished)
            engine.runner.start(order(int(id.task[1:]), journal=tuple(journals[id])) for id in unfinished)
            lives = rng.randrange(30) if kills < 200 else 10**6
            while unfinished and lives:
                lives -= 1
                reading = asyncio.ensure_future(engine.read())
                for _ in range(rng.randrange(1, 20)):
                    await asyncio.sleep(0)
                if kills < 200 and not reading.done():
                    reading.cancel()
                    continue
                for event in await reading:
                    if isinstance(event, Advanced):
                        journals[event.id].append(event.delta)
                    elif isinstance(event, Ended):
                        found[event.id] = plain(trajectory(engine.runner.results[event.id]))
                        del unfinished[event.id]
                        if kills < 200 and len(unfinished) < 20:
                            again = order(len(journals))  # there is always work to kill
                            unfinished[again.id], journals[again.id] = again, []
            cut.dead = True
            await executor.refuse([f"engine {kills}"])
            await engine.runner.cancel(unfinished)
            kills += 1
        return found, kills, moved

    expected = asyncio.run(undisturbed())
    alone = dict(made)
    made.clear()
    found, kills, moved = asyncio.run(killed())
    assert kills > 200
    assert moved > 200, "episodes went on from their journals"
    assert {id: found[id] for id in expected} == expected
    # What is searched for follows from the turn's seed: no two turns search for the same.
    assert made.keys() >= alone.keys()
    assert set(alone.values()) == set(made.values()) == {1}


def test_a_call_that_is_under_way_when_its_engine_dies_is_joined_by_the_next_engine() -> None:
    async def go() -> None:
        begun, go_on, made = asyncio.Event(), asyncio.Event(), 0

        async def wait(call: ToolCall) -> str:
            nonlocal made
            made += 1
            begun.set()
            await go_on.wait()
            return "done"

        executor = Answering(wait)
        cut: Any = Cut(executor)
        first = Runner(cut, policy=Saying(*SEARCHES), name="first")
        first.runner.start([order()])
        await first.read()
        await begun.wait()
        cut.dead = True
        await executor.refuse(["first"])
        second = Runner(executor, policy=Saying(*SEARCHES), name="second")
        second.runner.start([order(journal=journal_of(first, order().id))])
        await asyncio.sleep(0.01)
        go_on.set()
        await second.until_ended(1)
        assert made == 1
        assert "done" in trajectory(second.runner.results[order().id]).text

    asyncio.run(go())


# --- streaming --------------------------------------------------------------------------------------------------------


def test_tokens_are_streamed_where_they_are_asked_for_and_add_up_to_the_turns() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Saying(*SEARCHES))
        streamed, plainly = order(level=EventLevel.TOKENS), order(1)
        await runner.play([streamed, plainly])
        mine = [event for event in runner.events if event.id == streamed.id]
        assert [type(event).__name__ for event in mine] == [
            "Streamed", "Streamed", "Advanced", "Advanced", "Streamed", "Streamed", "Advanced", "Ended",
        ]  # fmt: skip
        tokens = [one for event in mine if isinstance(event, Streamed) for one in event.token_ids.tolist()]
        said = [d for d in journal_of(runner, streamed.id) if isinstance(d, Said)]
        assert tokens == [one for delta in said for one in delta.token_ids.tolist()]
        assert not [event for event in runner.events if isinstance(event, Streamed) and event.id == plainly.id]

    asyncio.run(go())


# --- acknowledgement --------------------------------------------------------------------------------------------------


class Acknowledged(Answering):
    ids: list[Any]

    async def start(self, caller: str, calls: Any, acknowledged: Sequence[Any], incarnation: str) -> str:
        self.ids = [*getattr(self, "ids", []), *acknowledged]
        return await super().start(caller, calls, acknowledged, incarnation)


def test_a_call_is_done_for_good_once_the_reader_has_its_observation() -> None:
    async def go() -> None:
        executor = Acknowledged(echo)
        runner = Runner(executor, policy=Saying((PLAN, SEARCH), (SEARCH,), (ANSWER,)))
        runner.runner.start([order()])
        for _ in range(50):
            await asyncio.sleep(0)
        assert executor.ids == [], "nothing was read"
        await runner.until_ended(1)
        await runner.play([order(1)])
        assert {(id.episode.task, id.turn) for id in executor.ids} >= {("t0", 1), ("t0", 2)}

    asyncio.run(go())


# --- single turns -----------------------------------------------------------------------------------------------------


def turn(draw: int = 0, **named: Any) -> TurnOrder:
    sampling: Any = SimpleNamespace(max_tokens=50)
    prompt = np.array([5, 6], np.int32)
    return TurnOrder(id=EpisodeId("t0", 0, 0, call=1), prompt=prompt, sampling=sampling, draw=draw, **named)


def test_a_single_turn_is_an_event_and_a_result() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Saying((PLAN, SEARCH)))
        one = turn()
        assert await runner.play([one]) == [Ended(id=one.id)]
        said = runner.runner.results[one.id]
        assert isinstance(said, Said)
        assert journal_of(runner, one.id) == (said,)
        assert tag_codec().decode(said.token_ids) == "<plan> p</plan><wiki_search> x</wiki_search>"

    asyncio.run(go())


def test_a_turn_that_another_engine_has_finished_is_not_sampled_again() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Saying((PLAN, SEARCH)))
        await runner.play([turn()])
        said = runner.runner.results[turn().id]
        assert isinstance(said, Said)
        other = Runner(Answering(echo))
        await other.play([turn(journal=(said,))])
        assert other.runner.results[turn().id] is said
        assert other.policy.seeds == []

    asyncio.run(go())


def test_the_seed_of_a_turn_depends_on_what_it_draws() -> None:
    async def seed(order: TurnOrder) -> int:
        runner = Runner(Answering(echo), policy=Saying((PLAN, SEARCH)))
        await runner.play([order])
        return runner.policy.seeds[0]

    async def go() -> None:
        first = await seed(turn(1))
        assert first == await seed(turn(1))
        assert first == await seed(replace(turn(1), id=EpisodeId("t0", 0, 0, serial=3, call=9)))
        assert first != await seed(turn(2))

    asyncio.run(go())


def test_a_turn_that_fails_is_told_with_its_length() -> None:
    class Broken(Saying):
        async def generate(self, ask: Any, **how: Any) -> Said:
            raise EngineDied("gone")

    async def go() -> None:
        runner = Runner(Answering(echo), policy=Broken())
        [failed] = await runner.play([turn()])
        assert failed == Failed(id=turn().id, where="EngineDied", why="gone", tokens=2, tool_calls=0)

    asyncio.run(go())
