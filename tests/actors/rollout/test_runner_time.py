"""Episodes of the runner that are cancelled or run out of time."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from actors.messages import EVALUATION, Cancelled, Ended, Failed
from actors.rollout.clocks import TimeLimits
from coa.agent.episode import Ask
from coa.agent.journal import Said
from coa.errors import EpisodeTimeout
from coa.grading.rewards import RewardConfig
from coa.tools.base import ToolCall
from coa.types import Scored, Status
from tests.support.executors import Answering
from tests.support.policies import AGENT, Runner, SeededPolicy, order
from tests.support.runners import ANSWER, PLAN, SEARCHES, Saying, echo, journal_of
from tests.support.virtual_time import in_virtual_time


class Hanging(SeededPolicy):
    async def generate(self, ask: Ask, **_: Any) -> Said:
        self.under_way += 1
        try:
            await asyncio.sleep(1e9)
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
            await asyncio.sleep(1e9)
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

    in_virtual_time(go())


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

    in_virtual_time(go())


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

    event, scored = in_virtual_time(go(max_seconds=60.0, grading_s=0.05))
    assert isinstance(event, Ended)
    assert (scored.trajectory.status, scored.reward) == (Status.ANSWERED, 1.0)
    event, _ = in_virtual_time(go(max_seconds=0.05, grading_s=60.0))
    assert isinstance(event, Failed), "what could not be graded is no zero"
    assert event.where == "EpisodeTimeout"


def test_an_evaluation_waits_for_the_groups_that_were_there_before_it_and_not_for_later_ones() -> None:
    async def go() -> None:
        runner = Runner(Answering(echo), policy=Saying((ANSWER,)))
        for each in (order(group=EVALUATION), order(1, group=7), order(2, group=3), order(3, group=EVALUATION)):
            await runner.play([each])
        await runner.play([order(4, group=8)])
        assert runner.policy.priorities == [0, 7, 3, 7, 8]

    in_virtual_time(go())


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

    in_virtual_time(go())


def test_a_time_limit_within_holds_a_foreign_timeout_apart() -> None:
    async def go() -> None:
        with pytest.raises(TimeoutError):
            async with TimeLimits().within(10):
                raise TimeoutError

    in_virtual_time(go())
