"""Episodes on a scripted policy: events, retries, moves to another engine, time limits, and what ends when."""

import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from actors.messages import EVALUATION, Advanced, Cancelled, Ended, EventLevel, Failed, Streamed
from actors.rollout.clocks import TimeLimits
from coa.agent.episode import Ask, Episode
from coa.agent.grammar import Chain, Span
from coa.agent.journal import Delta, Journal, Said
from coa.errors import EpisodeTimeout, JudgeDown, ToolDown
from coa.grading.rewards import RewardConfig
from coa.tools.base import ToolCall
from coa.tools.client import RetryConfig
from coa.types import Scored, Status, Trajectory
from tests.support.executors import Answering
from tests.support.fakes import tag_codec
from tests.support.policies import AGENT, Runner, SeededPolicy, order

PLAN, SEARCH, ANSWER = Span("plan", "p"), Span("wiki_search", "x"), Span("answer", "1")


class Saying(SeededPolicy):
    """The same turns in every episode."""

    def __init__(self, *turns: Chain) -> None:
        super().__init__()
        self.turns = turns

    def turn(self, ask: Ask, seed: int) -> Chain:
        return self.turns[ask.turn]


SEARCHES = ((PLAN, SEARCH), (ANSWER,))


async def echo(call: ToolCall) -> str:
    return f"{call.argument}!"


def journal_of(runner: Runner, id: Any) -> Journal:
    return tuple(event.delta for event in runner.events if isinstance(event, Advanced) and event.id == id)


def plain(made: Trajectory) -> tuple[object, ...]:
    return made.token_ids.tolist(), made.action_mask.tolist(), made.logprobs.tolist(), made.text


def trajectory(result: Any) -> Trajectory:
    return result.trajectory if isinstance(result, Scored) else result


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
            executor.calls.refuse([f"engine {kills}"])
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
        executor.calls.refuse(["first"])
        second = Runner(executor, policy=Saying(*SEARCHES), name="second")
        second.runner.start([order(journal=journal_of(first, order().id))])
        await asyncio.sleep(0.01)
        go_on.set()
        await second.until_ended(1)
        assert made == 1
        assert "done" in trajectory(second.runner.results[order().id]).text

    asyncio.run(go())


# --- failures ---------------------------------------------------------------------------------------------------------


def failing(share: float, seed: int) -> tuple[Any, list[str]]:
    rng, failed = random.Random(seed), []

    async def answer(call: ToolCall) -> str | ToolDown:
        if rng.random() < share:
            failed.append(call.argument)
            return ToolDown("a glitch")
        return f"{call.argument}!"

    return answer, failed


@pytest.mark.parametrize("seed", range(3))
def test_failing_calls_do_not_select_what_is_sampled(seed: int) -> None:
    """1 % of calls fail, in episodes of 0 to 6 calls: the multiset of (task, sample, token ids) stays the same."""

    async def multiset(answer: Any) -> tuple[Counter[Any], Counter[int], int]:
        runner = Runner(Answering(answer))
        orders = [order(i, sample) for i in range(60) for sample in range(8)]
        ended = await runner.play(orders)
        assert not [event for event in ended if not isinstance(event, Ended)]
        made = {id: trajectory(result) for id, result in runner.runner.results.items()}
        tokens = Counter((id.task, id.sample, tuple(one.token_ids.tolist())) for id, one in made.items())
        return tokens, Counter(len(one.tool_calls) for one in made.values()), runner.runner.retried

    whole, lengths, none = asyncio.run(multiset(echo))
    answer, failed = failing(0.01, seed)
    assert asyncio.run(multiset(answer))[0::2] == (whole, len(failed))
    assert len(failed) > 5
    assert none == 0
    assert set(lengths) == set(range(7))


def test_where_retries_end_the_episode_fails_and_says_how_far_it_had_come() -> None:
    async def go() -> None:
        async def down(call: ToolCall) -> ToolDown:
            return ToolDown("gone")

        runner = Runner(Answering(down), policy=Saying(*SEARCHES), retry=RetryConfig(attempts=3, pause_s=0))
        [failed] = await runner.play([order()])
        [said] = journal_of(runner, order().id)
        tokens = len(said.token_ids)
        assert failed == Failed(id=order().id, where="ToolDown", why="gone", tokens=tokens, tool_calls=1)
        assert runner.runner.retried == 2
        assert len(runner.policy.seeds) == 1, "no turn is sampled again"
        assert runner.runner.results == {}
        runner.runner.start([order()])
        assert runner.running == 0, "an order that was sent before its sender knew of the failure"
        runner.acknowledge()
        runner.runner.start([order()])
        assert runner.running == 1, "a failed episode may be started again"
        await runner.runner.cancel([order().id])

    asyncio.run(go())


def test_pauses_between_attempts_double() -> None:
    assert list(RetryConfig(attempts=4, pause_s=0.5).pauses()) == [0.5, 1.0, 2.0]
    assert list(RetryConfig(attempts=1).pauses()) == []
    with pytest.raises(ValueError, match=r"executor\.retry"):
        RetryConfig(attempts=0)


def test_a_judge_that_is_down_for_a_moment_is_asked_again() -> None:
    async def go() -> None:
        asked: list[str] = []

        async def judge(call: ToolCall) -> str | ToolDown:
            asked.append(call.tool)
            return JudgeDown("mute") if len(asked) < 3 else '{"correct": true}'

        runner = Runner(Answering(judge), policy=Saying((PLAN, ANSWER)), reward=RewardConfig(formula="judge"))
        assert await runner.play([order()]) == [Ended(id=order().id)]
        assert asked == ["judge"] * 3
        scored = runner.runner.results[order().id]
        assert isinstance(scored, Scored)
        assert scored.reward == 1.0

    asyncio.run(go())


def test_a_defect_is_raised_to_whoever_reads_the_events() -> None:
    async def go() -> None:
        async def broken(call: ToolCall) -> str:
            raise ZeroDivisionError

        runner = Runner(Answering(broken), policy=Saying(*SEARCHES))
        runner.runner.start([order()])
        with pytest.raises(RuntimeError, match="wiki_search: ZeroDivisionError"):
            await runner.until_ended(1)

    asyncio.run(go())


# --- cancelling and time ----------------------------------------------------------------------------------------------


class Hanging(SeededPolicy):
    async def generate(self, ask: Ask, **_: Any) -> Said:
        self.under_way += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.under_way -= 1
        raise AssertionError


class Hung:
    """A tool that never answers."""

    def __init__(self) -> None:
        self.begun, self.running = asyncio.Event(), 0

    async def __call__(self, call: ToolCall) -> str:
        self.begun.set()
        self.running += 1
        try:
            await asyncio.sleep(3600)
        finally:
            self.running -= 1
        raise AssertionError


def test_cancelling_ends_the_request() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Hanging())
        orders = [order(i) for i in range(3)]
        runner.runner.start(orders)
        await asyncio.sleep(0)
        assert runner.policy.under_way == 3
        await runner.runner.cancel([orders[0].id, orders[2].id, order(9).id])
        assert (runner.policy.under_way, runner.running) == (1, 1)
        assert list(await runner.read()) == [Cancelled(id=orders[0].id), Cancelled(id=orders[2].id)]
        end = runner.outbox.end
        await runner.runner.cancel([orders[0].id])
        assert runner.outbox.end == end, "a cancelled episode is cancelled once"
        await runner.runner.cancel([orders[1].id])

    asyncio.run(go())


def test_cancelling_ends_the_tool_call() -> None:
    async def go() -> None:
        tool = Hung()
        runner = Runner(Answering(tool), policy=Saying(*SEARCHES))
        runner.runner.start([order()])
        await tool.begun.wait()
        assert tool.running == 1
        await runner.runner.cancel([order().id])
        assert tool.running == 0
        await runner.until_ended(1)
        assert runner.events[-1] == Cancelled(id=order().id)

    asyncio.run(go())


def test_an_episode_that_is_cancelled_before_its_first_step_says_so() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo))
        runner.runner.start([order()])
        await runner.runner.cancel([order().id])
        assert list(await runner.read()) == [Cancelled(id=order().id)]
        assert runner.policy.seeds == []

    asyncio.run(go())


def test_cancelling_what_has_ended_forgets_it() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo))
        await runner.play([order()])
        await runner.runner.cancel([order().id])
        assert runner.runner.results == {}
        assert len([event for event in runner.events if isinstance(event, Cancelled)]) == 0

    asyncio.run(go())


@pytest.mark.parametrize("hangs", ["policy", "tool"])
def test_an_episode_over_its_time_is_a_failure_and_no_sample(hangs: str) -> None:
    async def go() -> None:
        tool = Hung()
        policy = Hanging() if hangs == "policy" else Saying(*SEARCHES)
        runner = Runner(Answering(tool), policy=policy)
        [failed] = await runner.play([order(limit_s=0.05)])
        assert isinstance(failed, Failed)
        assert (failed.where, failed.why) == ("EpisodeTimeout", "not done within 0.05 s")
        assert failed.tool_calls == (hangs == "tool")
        assert runner.runner.results == {}
        assert (policy.under_way, tool.running) == (0, 0)

    asyncio.run(go())


@pytest.mark.parametrize("hangs", ["policy", "tool"])
def test_an_episode_of_an_evaluation_that_is_over_its_time_is_truncated_and_graded(hangs: str) -> None:
    async def go() -> None:
        tool = Hung()
        policy = Hanging() if hangs == "policy" else Saying(*SEARCHES)
        runner = Runner(Answering(tool), policy=policy)
        late = order(group=EVALUATION, limit_s=0.05)
        assert await runner.play([late]) == [Ended(id=late.id)]
        scored = runner.runner.results[late.id]
        assert isinstance(scored, Scored)
        assert (scored.trajectory.status, scored.correct, scored.reward) == (Status.TRUNCATED, False, 0.0)
        assert len(scored.trajectory.tool_calls) == (hangs == "tool")
        assert (policy.under_way, tool.running) == (0, 0)

    asyncio.run(go())


def test_a_grader_does_not_use_the_time_of_an_evaluations_episode() -> None:
    async def go(max_seconds: float, grading_s: float) -> Any:
        async def slow(call: ToolCall) -> str:
            await asyncio.sleep(grading_s)
            return '{"correct": true}'

        answering = Saying((PLAN, ANSWER))
        first = Runner(Answering(echo), policy=answering)
        await first.play([order(group=EVALUATION)])
        journal = journal_of(first, order(group=EVALUATION).id)
        second = Runner(Answering(slow), policy=answering, reward=RewardConfig(formula="judge"))
        agent = replace(AGENT, limits=replace(AGENT.limits, max_seconds=max_seconds))
        # Its engine died when it had answered, and its time is over.
        moved = order(group=EVALUATION, agent=agent, limit_s=0.0, journal=journal)
        [event] = await second.play([moved])
        return event, second.runner.results.get(moved.id)

    event, scored = asyncio.run(go(max_seconds=60.0, grading_s=0.05))
    assert isinstance(event, Ended)
    assert (scored.trajectory.status, scored.reward) == (Status.ANSWERED, 1.0)
    event, _ = asyncio.run(go(max_seconds=0.05, grading_s=60.0))
    assert isinstance(event, Failed), "what could not be graded is no zero"
    assert event.where == "EpisodeTimeout"


def test_an_evaluation_waits_for_the_groups_that_were_there_before_it_and_not_for_later_ones() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Saying((ANSWER,)))
        for each in (order(group=EVALUATION), order(1, group=7), order(2, group=3), order(3, group=EVALUATION)):
            await runner.play([each])
        await runner.play([order(4, group=8)])
        assert runner.policy.priorities == [0, 7, 3, 7, 8]

    asyncio.run(go())


def test_a_pause_for_weights_does_not_count() -> None:
    async def go() -> None:
        limits, done = TimeLimits(), asyncio.Event()

        async def work() -> None:
            async with limits.within(0.05):
                await done.wait()

        early = asyncio.ensure_future(work())
        await asyncio.sleep(0)
        limits.pause(True)
        late = asyncio.ensure_future(work())
        await asyncio.sleep(0.1)
        assert not early.done()
        assert not late.done()
        limits.pause(False)
        for each in (early, late):
            with pytest.raises(EpisodeTimeout, match=r"not done within 0\.05 s"):
                await each
        limits.pause(True)
        third = asyncio.ensure_future(work())
        await asyncio.sleep(0.1)
        done.set()
        await third

    asyncio.run(go())


def test_a_time_limit_within_holds_a_foreign_timeout_apart() -> None:
    async def go() -> None:
        with pytest.raises(TimeoutError):
            async with TimeLimits().within(10):
                raise TimeoutError

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

    async def start(self, caller: str, calls: Any, acknowledged: Sequence[Any]) -> str:
        self.ids = [*getattr(self, "ids", []), *acknowledged]
        return await super().start(caller, calls, acknowledged)


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
